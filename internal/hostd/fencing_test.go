package hostd_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/fence"
	"github.com/fusevm/fuse/internal/hostd/sim"
)

func at(term int64, token string, change func(*hostd.Fence)) hostd.Fence {
	f := leader
	f.Term, f.ClaimToken = term, token
	if change != nil {
		change(&f)
	}
	return f
}

func (r *rig) claim(f hostd.Fence, proof fence.Proof) error {
	return r.Claim(hostd.Claim{Fence: f, Proof: proof})
}

// killed copies the data directory as it is, with the agent at work, and starts
// another one on the copy: what a SIGKILL at this moment would leave. damage is
// done to the copy before.
func (r *rig) killed(damage ...func(dir string) error) *hostd.Host {
	r.t.Helper()
	dir := r.t.TempDir()
	err := os.CopyFS(dir, os.DirFS(r.cfg.Dir))
	for _, do := range damage {
		err = errors.Join(err, do(dir))
	}
	if err != nil {
		r.t.Fatal(err)
	}
	cfg := r.cfg
	cfg.Dir = dir
	drv, err := sim.New(sim.Options{ObjectDir: filepath.Join(r.dir, "objects")})
	if err != nil {
		r.t.Fatal(err)
	}
	cfg.Driver = drv
	h, err := hostd.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := h.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return h
}

// What an agent has answered about claims holds after it was killed: the mark,
// how far creates have shown the store to be, and what an operator confirmed.
func TestMarksSurviveKills(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		shown := at(leader.Term, leader.ClaimToken, func(f *hostd.Fence) { f.Revision = 70 })
		if _, err := r.Create(t.Context(), shown, r.request(ref("vm", "u1")), nil); err != nil {
			t.Fatal(err)
		}
		next := at(6, "next", nil)
		backup := fence.Proof{Term: 5, Token: leader.ClaimToken, Revision: 69}
		for name, h := range map[string]*hostd.Host{"before": r.Host, "killed": r.killed()} {
			if err := h.Claim(hostd.Claim{Fence: next, Proof: backup}); !errors.Is(err, fleet.ErrFenced) {
				t.Errorf("%s: claim of a store that had not come as far: %v", name, err)
			}
			if err := h.Claim(hostd.Claim{Fence: leader}); err != nil {
				t.Errorf("%s: the holder after a refused claim: %v", name, err)
			}
		}
		backup.Revision = 70
		if err := r.claim(next, backup); err != nil {
			t.Fatal(err)
		}
		h := r.killed()
		if err := h.Destroy(t.Context(), leader, ref("vm", "u1")); !errors.Is(err, fleet.ErrStaleTerm) {
			t.Errorf("destroy by the earlier term after a kill: %v", err)
		}
		// A copy is confirmed. What the other line had shown is no measure for it.
		accepted := at(7, "copy", func(f *hostd.Fence) { f.Fingerprint = "copy" })
		if err := r.Claim(hostd.Claim{Fence: accepted, AcceptTerm: 6}); err != nil {
			t.Fatal(err)
		}
		after := at(8, "copy-2", func(f *hostd.Fence) { f.Fingerprint = "copy" })
		h = r.killed()
		if err := h.Claim(hostd.Claim{Fence: after, Proof: fence.Proof{Term: 7, Token: "copy", Revision: 3}}); err != nil {
			t.Errorf("the confirmed store's next term after a kill: %v", err)
		}
		if err := h.Claim(hostd.Claim{Fence: next}); !errors.Is(err, fleet.ErrFenced) {
			t.Errorf("the replaced store after a kill: %v", err)
		}
	})
}

// A registry that has lost its log knows from its VMs' own records which store
// made them.
func TestMarksComeBackWithoutTheLog(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		shown := at(leader.Term, leader.ClaimToken, func(f *hostd.Fence) { f.Revision = 70 })
		if _, err := r.Create(t.Context(), shown, r.request(ref("vm", "u1")), nil); err != nil {
			t.Fatal(err)
		}
		r.stop()
		if err := os.Remove(filepath.Join(r.cfg.Dir, "registry.log")); err != nil {
			t.Fatal(err)
		}
		h := r.killed()
		copied := at(6, "copy", func(f *hostd.Fence) { f.Fingerprint = "copy" })
		if err := h.Claim(hostd.Claim{Fence: copied}); !errors.Is(err, fleet.ErrFenced) {
			t.Errorf("claim of a copy: %v", err)
		}
		next, proof := at(6, "next", nil), fence.Proof{Term: 5, Token: leader.ClaimToken, Revision: 69}
		if err := h.Claim(hostd.Claim{Fence: next, Proof: proof}); !errors.Is(err, fleet.ErrFenced) {
			t.Errorf("claim of an older backup: %v", err)
		}
		proof.Revision = 70
		if err := h.Claim(hostd.Claim{Fence: next, Proof: proof}); err != nil {
			t.Errorf("claim of the store's next term: %v", err)
		}
	})
}

// A log whose record of the newest mark is damaged knows that mark from what was
// made under it.
func TestADamagedMarkAdmitsNobody(t *testing.T) {
	damaged := func(marks ...string) func(dir string) error {
		return func(dir string) error {
			path := filepath.Join(dir, "registry.log")
			doc, err := os.ReadFile(path)
			for _, token := range marks {
				mark := regexp.MustCompile(`(?m)^[0-9a-f]{8} \{"mark":.*"token":"` + token + `".*$`)
				if !mark.Match(doc) {
					err = errors.Join(err, errors.New("no record of the mark "+token))
				}
				doc = mark.ReplaceAll(doc, []byte("damaged"))
			}
			return errors.Join(err, os.WriteFile(path, doc, 0o600))
		}
	}
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		r.mustCreate(ref("vm", "u1"))
		next := at(6, "next", nil)
		if err := r.claim(next, fence.Proof{Term: 5, Token: leader.ClaimToken}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Create(t.Context(), next, r.request(ref("vm-2", "u2")), nil); err != nil {
			t.Fatal(err)
		}
		h := r.killed(damaged("next"))
		if err := h.Destroy(t.Context(), leader, ref("vm", "u1")); !errors.Is(err, fleet.ErrStaleTerm) {
			t.Errorf("destroy by the earlier term: %v", err)
		}
		if err := h.Claim(hostd.Claim{Fence: next}); err != nil {
			t.Errorf("the holder: %v", err)
		}
		h = r.killed(damaged("next", leader.ClaimToken))
		copied := at(7, "copy", func(f *hostd.Fence) { f.Fingerprint = "copy" })
		if err := h.Claim(hostd.Claim{Fence: copied}); !errors.Is(err, fleet.ErrFenced) {
			t.Errorf("claim of a copy, without any mark: %v", err)
		}
	})
}

// The answer to an operation is the fleet's and the life's that asked: it is
// there after a restart, for nobody else and for no other life.
func TestAnswersAreBoundToFleetAndLife(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		vm := ref("vm", "u1")
		r.mustCreate(vm)
		r.restart(sim.Options{})
		if err := r.create(vm); err != nil {
			t.Errorf("the same operation after a restart: %v", err)
		}
		other := at(1, "theirs", func(f *hostd.Fence) { f.FleetID = "fleet-2" })
		if err := r.claim(other, fence.Proof{}); err != nil {
			t.Fatal(err)
		}
		_, err := r.Create(t.Context(), other, r.request(vm), nil)
		wantCode(t, "the same operation by another fleet", err, fleet.CodeConflict)
		again := vm
		again.UID = "u2"
		wantCode(t, "the same operation id for another life", r.create(again), fleet.CodeConflict)
		if l := r.listing(); len(l.VMs) != 1 {
			t.Errorf("listed %+v", l.VMs)
		}
		r.drv.FailNext("boot", 1)
		failed := ref("failed", "u3")
		first := r.create(failed)
		r.restart(sim.Options{})
		if second := r.create(failed); first == nil || second == nil || first.Error() != second.Error() {
			t.Errorf("the answer of a failed create: %v, after a restart %v", first, second)
		}
		_, err = r.Create(t.Context(), other, r.request(failed), nil)
		wantCode(t, "a failed operation by another fleet", err, fleet.CodeConflict)
		r.mustDestroy(vm)
	})
}

func TestPurge(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		theirs := at(1, "theirs", func(f *hostd.Fence) { f.FleetID = "fleet-2" })
		if err := r.claim(theirs, fence.Proof{}); err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"a", "b"} {
			if _, err := r.Create(t.Context(), theirs, r.request(ref(id, "theirs-"+id)), nil); err != nil {
				t.Fatal(err)
			}
		}
		mine := ref("mine", "u1")
		r.mustCreate(mine)
		purge := func(f hostd.Fence, fleetID string, force bool) (int, int, error) {
			return r.PurgeFleet(t.Context(), f, fleetID, force)
		}
		_, _, err := purge(leader, leader.FleetID, true)
		wantCode(t, "purge of one's own fleet", err, fleet.CodeInvalidArgument)
		_, _, err = purge(leader, "", true)
		wantCode(t, "purge of nobody", err, fleet.CodeInvalidArgument)
		_, _, err = purge(at(4, "old", nil), "fleet-2", true)
		wantCode(t, "purge by a stale server", err, fleet.CodeConflict)
		_, _, err = purge(leader, "fleet-2", false)
		wantCode(t, "purge of a fleet that is led", err, fleet.CodeConflict)
		elapse(6 * time.Minute)
		r.restart(sim.Options{})
		_, _, err = purge(leader, "fleet-2", false)
		wantCode(t, "purge right after a start", err, fleet.CodeConflict)
		elapse(6 * time.Minute)
		r.drv.FailNext("remove", 1)
		if destroyed, failed, err := purge(leader, "fleet-2", false); err != nil || destroyed+failed != 2 {
			t.Errorf("purge: %d, %d, %v", destroyed, failed, err)
		}
		elapse(2 * time.Minute) // the sweep tries again what could not be cleared
		if l := r.List(leader.FleetID); l.Foreign != 0 || len(l.VMs) != 1 {
			t.Errorf("after the purge: %+v", l)
		}
		if destroyed, failed, err := purge(leader, "fleet-2", false); err != nil || destroyed+failed != 0 {
			t.Errorf("purge of nothing: %d, %d, %v", destroyed, failed, err)
		}
		// Its server may come back; it has its mark and none of its VMs.
		if _, err := r.Create(t.Context(), theirs, r.request(ref("c", "theirs-c")), nil); err != nil {
			t.Errorf("create by the fleet that was purged: %v", err)
		}
		r.mustDestroy(mine)
	})
}
