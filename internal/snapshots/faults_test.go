package snapshots_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/fake"
	"github.com/fusevm/fuse/internal/quota"
	"github.com/fusevm/fuse/internal/recovery"
	"github.com/fusevm/fuse/internal/snapshots"
	"github.com/fusevm/fuse/internal/snapshots/decide"
	"github.com/fusevm/fuse/internal/state"
)

// verbs are what is done to a world with one environment and one snapshot of it.
var verbs = []struct {
	name  string
	calls []string // at the host, in order
	do    func(ctx context.Context, w *world, vm, snap string) error
}{
	{"take", []string{fake.Take}, func(ctx context.Context, w *world, vm, _ string) error {
		_, err := w.snaps.Take(ctx, snapshots.TakeRequest{VMID: vm, Actor: "user:alice"})
		return err
	}},
	{"restore", []string{fake.Restore}, func(ctx context.Context, w *world, _, snap string) error {
		_, err := w.snaps.Restore(ctx, snap, "user:alice", nil)
		return err
	}},
	{"remove", []string{fake.Discard}, func(ctx context.Context, w *world, _, snap string) error {
		return w.snaps.Remove(ctx, snap, "user:alice")
	}},
	{"fork", []string{fake.Take, fake.Fork, fake.Upload}, func(ctx context.Context, w *world, vm, _ string) error {
		_, err := w.snaps.Fork(ctx, snapshots.ForkRequest{VMID: vm, Actor: "user:alice"})
		return err
	}},
	{"fork live", []string{fake.Take, fake.Fork, fake.Upload}, func(ctx context.Context, w *world, vm, _ string) error {
		_, err := w.snaps.Fork(ctx, snapshots.ForkRequest{VMID: vm, Actor: "user:alice", Live: true})
		return err
	}},
	{"pause", []string{fake.Pause}, func(ctx context.Context, w *world, vm, _ string) error {
		_, err := w.pauses.Pause(ctx, vm, "user:alice")
		return err
	}},
}

// Each call to the host fails in each way; once what is unwanted is collected,
// records and bytes agree, nothing is on its way, and the source runs.
func TestEveryCallFailsInEveryWay(t *testing.T) {
	for _, v := range verbs {
		for _, call := range v.calls {
			for _, how := range []string{"refused", "without a code", "lost", "lost, and the host is away", "disk full"} {
				t.Run(v.name+"/"+call+"/"+how, func(t *testing.T) {
					inBubble(t, nil, func(t *testing.T, w *world) {
						vm := w.create("a")
						snap := w.take(vm.ID, false)
						switch how {
						case "refused":
							w.host.Fail(call, fleet.Errorf(fleet.CodeConflict, "the host would not"))
						case "without a code":
							w.host.Fail(call, errors.New("boom"))
						case "disk full":
							w.host.Fail(call, fleet.Errorf(fleet.CodeUnavailable, "no space: %w", fleet.ErrNoCapacity))
						case "lost":
							w.host.LoseAnswer(call)
						default:
							w.host.LoseAnswer(call)
							for _, undo := range []string{fake.Discard, fake.Resume} {
								if undo != call {
									w.host.Fail(undo, fleet.Wrap(fleet.CodeUnavailable, provider.ErrNoAnswer, "away"))
								}
							}
						}
						err := v.do(t.Context(), w, vm.ID, snap.SnapshotID)
						if err == nil {
							t.Fatal("it worked")
						}
						if fleet.CodeOf(err) == "" || strings.Contains(err.Error(), "parent-secret-value") {
							t.Errorf("error %v", err)
						}
						if how != "lost, and the host is away" && v.name != "remove" {
							w.agree(1) // at once, whatever goes on by itself
							if now := w.vm(vm.ID); now.Paused != nil || w.host.Paused(vm.UID) {
								t.Errorf("after a failed %s it stands still", v.name)
							}
						}
						w.mend()
						left := 1
						if v.name == "remove" {
							left = 0 // it is gone on with
						}
						w.agree(left)
						if rows := w.host.UIDs(); len(rows) != 1 {
							t.Errorf("machines on the host: %v", rows)
						}
						if now := w.vm(vm.ID); now == nil || now.State != fleet.VMStateRunning || now.Paused != nil || w.host.Paused(vm.UID) {
							t.Errorf("the source is %+v", now)
						}
						if w.allocated().VMCount != 1 || w.allocated().RamMB != 512 {
							t.Errorf("held: %+v", w.allocated())
						}
					})
				})
			}
		}
	}
}

// mend does what the loops do: destroys go on, what is unwanted is collected,
// pauses in between are brought to run.
func (w *world) mend() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = w.pauses.Run(ctx) })
	<-time.After(time.Minute)
	synctest.Wait()
	cancel()
	wg.Wait()
	var ending []string
	_ = w.store.View(func(tx *state.ReadTx) error {
		for vm := range tx.VMs().All() {
			if vm.State == fleet.VMStateDestroying {
				ending = append(ending, vm.ID)
			}
		}
		return nil
	})
	for _, id := range ending {
		w.destroy(id)
	}
	w.collect()
	for range 3 {
		if err := w.snaps.Sweep(w.t.Context()); err != nil {
			w.t.Error("sweep:", err)
		}
	}
}

// The process is killed before each of its commits, after which nothing of it
// acts any more; the next one recovers as the loop does.
func TestKilledBeforeEveryCommit(t *testing.T) {
	for _, v := range verbs {
		for n := range 12 {
			t.Run(fmt.Sprintf("%s/%d", v.name, n), func(t *testing.T) {
				inBubble(t, nil, func(t *testing.T, w *world) {
					vm := w.create("a")
					snap := w.take(vm.ID, false)
					w.stopper.dieAfter(n)
					err := v.do(t.Context(), w, vm.ID, snap.SnapshotID)
					w.close()
					w.start()
					w.recover()
					w.mend()
					killed := err != nil
					var rows []*fleet.VM
					_ = w.store.View(func(tx *state.ReadTx) error {
						for row := range tx.VMs().All() {
							rows = append(rows, row)
						}
						return nil
					})
					if len(rows) != len(w.host.UIDs()) {
						t.Errorf("rows %d, on the host %v", len(rows), w.host.UIDs())
					}
					for _, row := range rows {
						if row.State != fleet.VMStateRunning || (row.Paused != nil) != w.host.Paused(row.UID) || row.Paused != nil && row.Activity() != fleet.ActivityPaused {
							t.Errorf("row %s is %s %s, paused at the host %t", row.ID, row.State, row.Activity(), w.host.Paused(row.UID))
						}
					}
					w.agree(len(w.records()))
					if killed && v.name != "remove" && w.record(snap.SnapshotID) == nil {
						t.Error("a snapshot that nobody deleted is gone")
					}
				})
			})
		}
	}
}

// recover does what recovery does with rows and records that a dead process left.
func (w *world) recover() {
	w.t.Helper()
	w.update(func(tx *state.Tx) error {
		for snap := range tx.Snapshots().All() {
			v := recovery.TriageSnapshot(*snap)
			if v.State == "" {
				continue
			}
			row := *snap
			row.Discard = row.Discard || row.State == fleet.SnapshotStateCreating || row.State == fleet.SnapshotStateDeleting
			row.State = v.State
			if err := tx.PutSnapshot(row); err != nil {
				return err
			}
		}
		for vm := range tx.VMs().All() {
			if vm.State == fleet.VMStateProvisioning {
				row := *vm
				row.State, row.End = fleet.VMStateDestroying, &fleet.Reason{Actor: fleet.ActorRecovery, Rule: fleet.RuleCreateInterrupted}
				row.Generation++
				if err := tx.PutVM(row); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func TestQuotasHoldUnderAnyNumberOfCallers(t *testing.T) {
	inBubble(t, func(c *snapshots.Config) { c.Limits = decide.Limits{Count: 3} }, func(t *testing.T, w *world) {
		vm := w.create("a")
		w.host.Latency(fake.Take, time.Second)
		var mu sync.Mutex
		var wg sync.WaitGroup
		refused := 0
		for range 10 {
			wg.Go(func() {
				_, err := w.snaps.Take(t.Context(), snapshots.TakeRequest{VMID: vm.ID, Actor: "user:alice"})
				if err != nil {
					mu.Lock()
					refused++
					mu.Unlock()
					want(t, err, fleet.CodeConflict, fleet.ErrSnapshotQuotaExceeded, "3 snapshots")
				}
			})
		}
		wg.Wait()
		if refused != 7 {
			t.Errorf("%d were refused", refused)
		}
		w.agree(3)
		if _, err := w.snaps.Take(t.Context(), snapshots.TakeRequest{VMID: vm.ID, Actor: "user:alice", Mode: fleet.SnapshotModeBuild}); err != nil {
			t.Error("a build counts:", err)
		}
	})
}

func TestBytesAreCountedWhenTheyAreKnown(t *testing.T) {
	inBubble(t, func(c *snapshots.Config) { c.Limits = decide.Limits{Bytes: 2*fake.SnapshotBytes + 1} }, func(t *testing.T, w *world) {
		vm := w.create("a")
		w.take(vm.ID, false)
		w.take(vm.ID, false)
		_, err := w.snaps.Take(t.Context(), snapshots.TakeRequest{VMID: vm.ID, Actor: "user:alice"})
		want(t, err, fleet.CodeConflict, fleet.ErrSnapshotQuotaExceeded, "bytes")
		w.agree(2) // what was written is gone again
	})
}

func TestOwnersAreBounded(t *testing.T) {
	for name, limit := range map[string]int64{snapshots.QuotaSnapshots: 1, snapshots.QuotaSnapshotMB: 1} {
		inBubble(t, nil, func(t *testing.T, w *world) {
			vm := w.create("a")
			if _, err := w.quotas.Set(t.Context(), "owner:alice", map[string]*int64{name: &limit}, "user:master"); err != nil {
				t.Fatal(err)
			}
			w.take(vm.ID, false)
			_, err := w.snaps.Take(t.Context(), snapshots.TakeRequest{VMID: vm.ID, Actor: "user:alice"})
			want(t, err, fleet.CodeQuotaExceeded, fleet.ErrQuotaExceeded, "alice")
			w.agree(1)
			e, err := w.quotas.Get("owner:alice", func(string) bool { return true })
			if err != nil || !contains(e.Lines, name, 1) {
				t.Errorf("%+v, %v", e, err)
			}
		})
	}
}

func contains(lines []quota.Line, name string, used int64) bool {
	for _, l := range lines {
		if l.Dimension == name && l.Used == used {
			return true
		}
	}
	return false
}

func TestBytesAndRecordsAreCompared(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		vm := w.create("a")
		lost, spoilt, kept := w.take(vm.ID, false), w.take(vm.ID, false), w.take(vm.ID, false)
		fleetID := w.fleet()
		shelf := w.host.Shelf()
		shelf.Plant(fleetID, fleet.Artifact{ID: "snap-orphan", VMID: "fuse-x"})
		shelf.Plant("another", fleet.Artifact{ID: "snap-foreign"})
		shelf.LoseBytes(lost.SnapshotID)
		sweep := func() {
			t.Helper()
			if err := w.snaps.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
		}
		has := func(id string) bool {
			for _, a := range shelf.Artifacts() {
				if a == id {
					return true
				}
			}
			return false
		}
		sweep()
		w.host.SetComplete(false, "adopting")
		sweep()
		sweep()
		if !has("snap-orphan") || w.record(lost.SnapshotID).State != fleet.SnapshotStateReady {
			t.Error("one complete look was enough")
		}
		w.host.SetComplete(true, "")
		w.host.Fail(fake.Snapshots, errors.New("away"))
		sweep()
		shelf.Spoil(spoilt.SnapshotID, "its digest is another")
		w.host.Fail(fake.Discard, errors.New("busy"))
		sweep() // the second complete look; the deletion fails
		if s := w.record(lost.SnapshotID); s.State != fleet.SnapshotStateError || !strings.Contains(s.LastError, "no longer has") {
			t.Errorf("lost: %+v", s)
		}
		if s := w.record(spoilt.SnapshotID); s.State != fleet.SnapshotStateError || !strings.Contains(s.LastError, "digest") {
			t.Errorf("spoilt: %+v", s)
		}
		if !has("snap-orphan") {
			t.Error("the deletion failed, and yet it is gone")
		}
		sweep()
		if has("snap-orphan") || !has("snap-foreign") || !has(kept.SnapshotID) || w.record(kept.SnapshotID).State != fleet.SnapshotStateReady {
			t.Errorf("on the host: %v", shelf.Artifacts())
		}
		if got := w.events("snap-orphan"); len(got) != 1 || got[0] != fleet.EventSnapshotOrphan {
			t.Error(got)
		}
		if got := w.events(lost.SnapshotID); got[len(got)-1] != fleet.EventSnapshotLost {
			t.Error(got)
		}
		// What is an error can be deleted.
		for _, id := range []string{lost.SnapshotID, spoilt.SnapshotID} {
			if err := w.snaps.Remove(t.Context(), id, "user:alice"); err != nil && !errors.Is(err, fleet.ErrSnapshotHasChildren) {
				t.Error(err)
			}
		}
	})
}

func TestAPausedLoopDeletesNoOrphans(t *testing.T) {
	inBubble(t, func(c *snapshots.Config) {
		c.Paused = func() (fleet.Pauses, error) { return fleet.Pauses{All: &fleet.Pause{Actor: "user:x"}}, nil }
	}, func(t *testing.T, w *world) {
		w.host.Shelf().Plant(w.fleet(), fleet.Artifact{ID: "snap-orphan"})
		for range 3 {
			if err := w.snaps.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if len(w.host.Shelf().Artifacts()) != 1 {
			t.Error("it is gone")
		}
	})
}
