package hostd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/fence"
	"github.com/fusevm/fuse/internal/hostd/sim"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var leader = hostd.Fence{FleetID: "fleet-1", Term: 5, ClaimToken: "claim", Fingerprint: "store"}

// rig is a host agent on a data directory that outlives it.
type rig struct {
	*hostd.Host
	t    *testing.T
	dir  string
	cfg  hostd.Config
	drv  *sim.Driver
	stop func()
}

// bubble runs a test in virtual time with a simulated host. Its agent is not
// started yet.
func bubble(t *testing.T, opts sim.Options, test func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		opts.ObjectDir = filepath.Join(dir, "objects")
		opts.Seed = 1
		r := &rig{t: t, dir: dir, cfg: hostd.Config{Dir: filepath.Join(dir, "host"), Token: "a-token-of-16-bytes"}}
		r.boot(opts)
		defer func() { r.stop() }()
		test(t, r)
	})
}

// elapse lets virtual time pass.
func elapse(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// boot starts the agent, as after a restart, with a new driver.
func (r *rig) boot(opts sim.Options) {
	r.t.Helper()
	opts.ObjectDir = filepath.Join(r.dir, "objects")
	drv, err := sim.New(opts)
	if err != nil {
		r.t.Fatal(err)
	}
	cfg := r.cfg
	cfg.Driver = drv
	cfg.Logger = slog.New(slog.NewTextHandler(r.t.Output(), nil))
	h, err := hostd.New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- h.Run(ctx) }()
	r.Host, r.drv = h, drv
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-ran, h.Close()); err != nil {
			r.t.Error(err)
		}
	})
	synctest.Wait()
	if err := h.Claim(hostd.Claim{Fence: leader}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) restart(opts sim.Options) {
	r.t.Helper()
	r.stop()
	r.boot(opts)
}

func ref(id, uid string) hostd.Ref {
	return hostd.Ref{VMID: id, UID: uid, Generation: 1, OpID: "create-" + uid}
}

func (r *rig) request(id hostd.Ref) hostd.CreateRequest {
	return hostd.CreateRequest{Ref: id, CPUs: 1, RamMB: 100, StorageGB: 1, Image: "minimal"}
}

func (r *rig) create(id hostd.Ref) error {
	_, err := r.Create(r.t.Context(), leader, r.request(id), nil)
	return err
}

func (r *rig) mustCreate(ids ...hostd.Ref) {
	r.t.Helper()
	for _, id := range ids {
		if err := r.create(id); err != nil {
			r.t.Fatalf("create %s: %v", id.VMID, err)
		}
	}
}

func (r *rig) mustDestroy(id hostd.Ref) {
	r.t.Helper()
	id.OpID = "destroy-" + id.UID
	if err := r.Destroy(r.t.Context(), leader, id); err != nil {
		r.t.Fatalf("destroy %s: %v", id.VMID, err)
	}
}

// left lists what is on the machine: VM directories and objects.
func (r *rig) left() (out []string) {
	r.t.Helper()
	for _, dir := range []string{"host/vms", "objects"} {
		entries, err := os.ReadDir(filepath.Join(r.dir, dir))
		if err != nil {
			r.t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, e.Name())
		}
	}
	return out
}

func (r *rig) wantLeft(want ...string) {
	r.t.Helper()
	if got := r.left(); !slices.Equal(got, want) {
		r.t.Errorf("on the machine: %v, want %v", got, want)
	}
}

func (r *rig) listing() hostd.Listing {
	r.t.Helper()
	l := r.List(leader.FleetID)
	if !l.Complete {
		r.t.Fatalf("listing is not complete: %s", l.Reason)
	}
	return l
}

func wantCode(t *testing.T, what string, err error, code fleet.Code) {
	t.Helper()
	if fleet.CodeOf(err) != code {
		t.Errorf("%s: %v (%s), want code %s", what, err, fleet.CodeOf(err), code)
	}
}

func TestFailedCreateLeavesNothing(t *testing.T) {
	for _, step := range []string{"create", "boot"} {
		t.Run(step, func(t *testing.T) {
			bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
				kept, failed := ref("kept", "u1"), ref("failed", "u2")
				r.mustCreate(kept)
				r.drv.FailNext(step, 1)
				err := r.create(failed)
				var fe *fleet.Error
				if !errors.As(err, &fe) || fe.Details[fleet.DetailStep] != step {
					t.Fatalf("create: %v, want the driver's own error", err)
				}
				r.wantLeft("u1", "slot-1")
				again := r.create(failed)
				if again == nil || again.Error() != err.Error() || fleet.CodeOf(again) != fleet.CodeOf(err) {
					t.Errorf("a repeat gets %v, the first answer was %v", again, err)
				}
				r.restart(sim.Options{})
				if again := r.create(failed); again == nil || again.Error() != err.Error() {
					t.Errorf("a repeat after a restart gets %v, the first answer was %v", again, err)
				}
				next := ref("failed", "u3")
				r.mustCreate(next)
				r.wantLeft("u1", "u3", "slot-1", "slot-2")
			})
		})
	}
}

func TestUnclearedCreateIsTriedAgain(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		r.drv.FailNext("boot", 1)
		r.drv.FailNext("remove", 2)
		failed := ref("failed", "u1")
		if err := r.create(failed); err == nil {
			t.Fatal("create succeeded")
		}
		if l := r.listing(); len(l.VMs) != 1 {
			t.Errorf("what could not be cleared is not listed: %+v", l.VMs)
		}
		elapse(time.Minute + time.Second) // virtual: the first sweep after it fails again
		if l := r.listing(); len(l.VMs) != 1 {
			t.Errorf("after one more failure: %+v", l.VMs)
		}
		elapse(time.Minute)
		if l := r.listing(); len(l.VMs) != 0 {
			t.Errorf("still there: %+v", l.VMs)
		}
		r.wantLeft()
	})
}

func TestFailedDestroyIsNoAnswer(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		vm := ref("vm", "u1")
		r.mustCreate(vm)
		r.drv.FailNext("remove", 1)
		gone := vm
		gone.OpID = "destroy"
		if err := r.Destroy(t.Context(), leader, gone); err == nil {
			t.Fatal("destroy succeeded")
		}
		if err := r.Destroy(t.Context(), leader, gone); err != nil {
			t.Errorf("the same operation, tried again: %v", err)
		}
		r.wantLeft()
	})
}

func TestDiskInTheWayIsUndone(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		// A file where the VM's directory should be: mkdir fails for root too.
		path := filepath.Join(r.dir, "host", "vms", "u1")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		wantCode(t, "create", r.create(ref("vm", "u1")), fleet.CodeInternal)
		if l := r.listing(); len(l.VMs) != 0 {
			t.Errorf("listed: %+v", l.VMs)
		}
		r.mustCreate(ref("vm", "u2"))
		r.wantLeft("u2", "slot-1")
	})
}

func TestDestroyWinsOverCreate(t *testing.T) {
	bubble(t, sim.Options{Delay: map[string]sim.Range{"boot": {Min: time.Hour, Max: time.Hour}}}, func(t *testing.T, r *rig) {
		vm := ref("vm", "u1")
		created := make(chan error, 1)
		go func() { created <- r.create(vm) }()
		synctest.Wait()
		if got := r.listing().VMs; len(got) != 1 || !got[0].Running {
			t.Errorf("a VM that is being created: %+v", got)
		}
		_, err := r.Exec(t.Context(), hostd.ExecCall{Fence: leader, Ref: vm, Spec: fleet.ExecSpec{Argv: []string{"true"}}})
		wantCode(t, "exec while it is created", err, fleet.CodeConflict)
		begun := time.Now()
		r.mustDestroy(vm)
		wantCode(t, "the create", <-created, fleet.CodeConflict)
		if took := time.Since(begun); took != 0 {
			t.Errorf("destroy waited %v for the boot", took)
		}
		r.wantLeft()
	})
}

func TestCreateTimesOut(t *testing.T) {
	bubble(t, sim.Options{Delay: map[string]sim.Range{"boot": {Min: time.Hour, Max: time.Hour}}}, func(t *testing.T, r *rig) {
		begun := time.Now()
		wantCode(t, "create", r.create(ref("vm", "u1")), fleet.CodeDeadlineExceeded)
		if took := time.Since(begun); took != 10*time.Minute {
			t.Errorf("it took %v", took)
		}
		r.wantLeft()
	})
}

func TestCapacity(t *testing.T) {
	bubble(t, sim.Options{VMs: 3, RamMB: 250, StorageGB: 100}, func(t *testing.T, r *rig) {
		r.mustCreate(ref("a", "u1"), ref("b", "u2"))
		err := r.create(ref("c", "u3"))
		var fe *fleet.Error
		if !errors.Is(err, fleet.ErrNoCapacity) || !errors.As(err, &fe) {
			t.Fatalf("create: %v", err)
		}
		want := map[string]string{
			fleet.DetailScope: "ram_mb", fleet.DetailLimit: "250", fleet.DetailUsage: "200 used, 100 asked for",
			fleet.DetailRemedy: "destroy environments, ask for less, or raise the host's capacity",
		}
		for k, v := range want {
			if fe.Details[k] != v {
				t.Errorf("%s is %q, want %q", k, fe.Details[k], v)
			}
		}
		r.mustDestroy(ref("a", "u1"))
		r.mustCreate(ref("c", "u4"))
		r.wantLeft("u2", "u4", "slot-1", "slot-2")
	})
}

func TestAdoption(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		runs, stopped, unlucky := ref("runs", "u1"), ref("stopped", "u2"), ref("unlucky", "u3")
		r.mustCreate(runs, stopped, unlucky)
		r.stop()
		if !r.drv.Stop("u2", "guest_poweroff") {
			// The driver has let go; the file is what tells.
			writeExit(t, filepath.Join(r.dir, "host/vms/u2"), "guest_poweroff")
		}
		r.boot(sim.Options{Delay: map[string]sim.Range{"adopt": {Min: 10 * time.Second, Max: 10 * time.Second}}, Fail: map[string]sim.Failure{"adopt": {Times: 1}}})
		if l := r.List(leader.FleetID); l.Complete || l.Reason == "" || l.VMs != nil || l.Facts.RegistryID == "" {
			t.Errorf("before the adoption has ended: %+v", l)
		}
		elapse(11 * time.Second)
		// The adoption of one of them failed: it counts as running until more is
		// known. None that runs may count as stopped.
		running := map[string]bool{}
		for range 2 {
			for _, v := range r.listing().VMs {
				running[v.ID] = v.Running
				if !v.Running && (v.ID != "stopped" || v.Exit.Cause != "guest_poweroff") {
					t.Errorf("%s: %+v", v.ID, v.Exit)
				}
			}
			elapse(time.Minute + 11*time.Second) // and it is tried again
		}
		if len(running) != 3 || running["stopped"] {
			t.Errorf("in the end: %v", running)
		}
		for _, id := range []hostd.Ref{runs, unlucky} {
			if _, err := r.Exec(t.Context(), hostd.ExecCall{Fence: leader, Ref: id, Spec: fleet.ExecSpec{Argv: []string{"true"}}}); err != nil {
				t.Errorf("%s: %v", id.VMID, err)
			}
		}
		for _, id := range []hostd.Ref{runs, stopped, unlucky} {
			r.mustDestroy(id)
		}
		r.wantLeft()
	})
}

func writeExit(t *testing.T, dir, cause string) {
	t.Helper()
	doc := fmt.Sprintf(`{"state":{"boot_id":"b","exit":{"cause":%q,"at":"2026-01-02T03:04:05Z"}}}`+"\n", cause)
	if err := os.WriteFile(filepath.Join(dir, "sim.log"), []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestExitIsNotedAndKept(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		vm := ref("vm", "u1")
		r.mustCreate(vm)
		broken := make(chan error, 1)
		go func() {
			_, err := r.Exec(t.Context(), hostd.ExecCall{Fence: leader, Ref: vm, Spec: fleet.ExecSpec{Argv: []string{"sleep", "infinity"}}})
			broken <- err
		}()
		synctest.Wait()
		if !r.drv.Stop("u1", "vmm_exited") {
			t.Fatal("it does not run")
		}
		elapse(time.Second)
		for range 2 {
			got := r.listing().VMs
			if len(got) != 1 || got[0].Running || got[0].Exit == nil || got[0].Exit.Cause != "vmm_exited" || got[0].Exit.UID != "u1" {
				t.Fatalf("listed: %+v", got)
			}
			_, err := r.Exec(t.Context(), hostd.ExecCall{Fence: leader, Ref: vm, Spec: fleet.ExecSpec{Argv: []string{"true"}}})
			if !errors.Is(err, fleet.ErrVMNotRunning) || !strings.Contains(err.Error(), "vmm_exited") {
				t.Errorf("exec: %v", err)
			}
			r.restart(sim.Options{})
		}
		if err := <-broken; !errors.Is(err, fleet.ErrVMNotRunning) {
			t.Errorf("the exec that was running: %v", err)
		}
		r.mustDestroy(vm)
		r.wantLeft()
	})
}

func TestUnreadableOwnerIsForeign(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		r.mustCreate(ref("a", "u1"), ref("b", "u2"), ref("c", "u3"))
		r.stop()
		// The log loses two lives; one of them has its owner in its directory.
		log := filepath.Join(r.dir, "host", "registry.log")
		doc, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		var kept []string
		for line := range strings.Lines(string(doc)) {
			if strings.Contains(line, `"uid":"u1"`) || strings.Contains(line, `"uid":"u2"`) {
				line = "X" + line[1:]
			}
			kept = append(kept, line)
		}
		owner := filepath.Join(r.dir, "host/vms/u1/owner.json")
		if err := errors.Join(os.WriteFile(log, []byte(strings.Join(kept, "")), 0o600), os.WriteFile(owner, []byte("{"), 0o600)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			r.boot(sim.Options{})
			elapse(time.Second)
			l := r.listing()
			if len(l.VMs) != 2 || l.VMs[0].ID != "b" || l.VMs[1].ID != "c" || l.Foreign != 1 {
				t.Errorf("listed %+v, %d foreign", l.VMs, l.Foreign)
			}
			r.wantLeft("u1", "u2", "u3", "slot-1", "slot-2", "slot-3")
			gone := ref("a", "u1")
			wantCode(t, "destroy of what cannot be read", r.Destroy(t.Context(), leader, gone), fleet.CodeForbidden)
			wantCode(t, "create of it", r.create(gone), fleet.CodeForbidden)
			r.stop()
		}
		if _, err := os.Stat(filepath.Dir(owner)); err != nil {
			t.Errorf("it was touched: %v", err)
		}
	})
}

func TestDamagedEndIsNoSecondOwner(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		first, second := ref("vm", "u1"), ref("vm", "u2")
		r.mustCreate(first)
		r.mustDestroy(first)
		r.mustCreate(second)
		r.stop()
		log := filepath.Join(r.dir, "host", "registry.log")
		doc, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		var kept []string
		for line := range strings.Lines(string(doc)) {
			if !strings.Contains(line, `"ended"`) && !strings.Contains(line, `"condemned"`) {
				kept = append(kept, line)
			}
		}
		if err := os.WriteFile(log, []byte(strings.Join(kept, "")), 0o600); err != nil {
			t.Fatal(err)
		}
		r.boot(sim.Options{})
		elapse(time.Second)
		if vms := r.listing().VMs; len(vms) != 1 || vms[0].UID != "u2" || !vms[0].Running {
			t.Errorf("listed: %+v", vms)
		}
		r.mustCreate(ref("other", "u3"))
		r.wantLeft("u2", "u3", "slot-1", "slot-2")
	})
}

func TestOneAgentPerDirectory(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		id := r.RegistryID()
		cfg := r.cfg
		cfg.Driver = r.drv
		_, err := hostd.New(cfg)
		wantCode(t, "a second agent", err, fleet.CodeConflict)
		r.restart(sim.Options{})
		if r.RegistryID() != id {
			t.Errorf("the registry id changed from %s to %s", id, r.RegistryID())
		}
		r.stop()
		if err := os.Remove(filepath.Join(r.dir, "host", "registry.json")); err != nil {
			t.Fatal(err)
		}
		if _, err := hostd.New(cfg); err == nil {
			t.Error("a registry without its id was given a new one")
		}
	})
}

func TestMarksSurviveRestart(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		next := leader
		next.Term, next.ClaimToken = 6, "other"
		if err := r.Claim(hostd.Claim{Fence: next, Proof: fence.Proof{Term: leader.Term, Token: leader.ClaimToken}}); err != nil {
			t.Fatal(err)
		}
		r.stop()
		cfg := r.cfg
		cfg.Driver = r.drv
		h, err := hostd.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Claim(hostd.Claim{Fence: leader}); !errors.Is(err, fleet.ErrStaleTerm) {
			t.Errorf("claim of the earlier term: %v", err)
		}
		if err := h.Destroy(t.Context(), leader, ref("vm", "u1")); !errors.Is(err, fleet.ErrStaleTerm) {
			t.Errorf("destroy in the earlier term: %v", err)
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestCloseEndsSlowCreates(t *testing.T) {
	bubble(t, sim.Options{Delay: map[string]sim.Range{"boot": {Min: time.Hour, Max: time.Hour}}}, func(t *testing.T, r *rig) {
		created := make(chan error, 1)
		go func() { created <- r.create(ref("vm", "u1")) }()
		synctest.Wait()
		begun := time.Now()
		r.stop()
		wantCode(t, "the create", <-created, fleet.CodeUnavailable)
		if took := time.Since(begun); took != 15*time.Second {
			t.Errorf("close took %v", took)
		}
		r.wantLeft()
		wantCode(t, "create after close", r.create(ref("vm", "u2")), fleet.CodeUnavailable)
		wantCode(t, "destroy after close", r.Destroy(t.Context(), leader, ref("vm", "u1")), fleet.CodeUnavailable)
	})
}

func TestProbeIsTriedAgain(t *testing.T) {
	bubble(t, sim.Options{Fail: map[string]sim.Failure{"probe": {Times: 2}}}, func(t *testing.T, r *rig) {
		if l := r.List(leader.FleetID); l.Complete || !strings.Contains(l.Reason, "simulated failure") {
			t.Errorf("listing: %+v", l)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.Create(ctx, leader, r.request(ref("vm", "u1")), nil)
		wantCode(t, "create on a host that was not probed", err, fleet.CodeUnavailable)
		elapse(time.Minute)
		r.mustCreate(ref("vm", "u1"))
	})
}

// TestManyIdleVMs holds the cost of VMs that do nothing: no goroutine each,
// and little memory.
func TestManyIdleVMs(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		n := testkit.Count(1000, 10000)
		before := heap()
		var wg sync.WaitGroup
		for w := range 32 {
			wg.Go(func() {
				for i := w; i < n; i += 32 {
					if err := r.create(ref(fmt.Sprintf("vm-%d", i), fmt.Sprintf("u%d", i))); err != nil {
						t.Errorf("create %d: %v", i, err)
					}
				}
			})
		}
		wg.Wait()
		synctest.Wait()
		if g := runtime.NumGoroutine(); g > 100 {
			t.Errorf("%d goroutines for %d idle VMs", g, n)
		}
		if each := (heap() - before) / int64(n); each > 4<<10 {
			t.Errorf("an idle VM holds %d bytes of memory", each)
		} else {
			t.Logf("an idle VM holds %d bytes of memory", each)
		}
		if got := len(r.listing().VMs); got != n {
			t.Errorf("%d listed, want %d", got, n)
		}
		r.restart(sim.Options{})
		if got := len(r.listing().VMs); got != n {
			t.Errorf("%d listed after a restart, want %d", got, n)
		}
		for i := range n {
			r.mustDestroy(ref(fmt.Sprintf("vm-%d", i), fmt.Sprintf("u%d", i)))
		}
		r.wantLeft()
		if size := fileSize(t, filepath.Join(r.dir, "host/registry.log")); size > 16<<20 {
			t.Errorf("the log has grown to %d bytes", size)
		}
	})
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func fileSize(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// TestFullDisk runs the agent on tiny real file systems. What does not fit is
// refused in words, leaves nothing, and works once there is room.
func TestFullDisk(t *testing.T) {
	for name, mount := range map[string]struct{ dir, options string }{
		"log":       {"host", "size=64k"},
		"directory": {"host/vms", "nr_inodes=4"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
				r.stop()
				at := filepath.Join(r.dir, mount.dir)
				if err := unix.Mount("tmpfs", at, "tmpfs", 0, mount.options); err != nil {
					t.Fatalf("mount a tmpfs (as root): %v", err)
				}
				defer func() {
					r.stop()
					if err := unix.Unmount(at, 0); err != nil {
						t.Error(err)
					}
				}()
				r.boot(sim.Options{})
				ballast := filepath.Join(at, "ballast")
				// The last write that fits is cut short by the end of the disk.
				if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); err != nil && !errors.Is(err, unix.ENOSPC) {
					t.Fatal(err)
				}
				vm := ref("vm", "u1")
				err := r.create(vm)
				var fe *fleet.Error
				if !errors.As(err, &fe) || fe.Code != fleet.CodeUnavailable || fe.Details[fleet.DetailReason] != "disk_full" || fe.Details[fleet.DetailRemedy] == "" {
					t.Errorf("create on a full disk: %v", err)
				}
				if err := os.Remove(ballast); err != nil {
					t.Fatal(err)
				}
				if vms := r.listing().VMs; len(vms) != 0 {
					t.Errorf("listed: %+v", vms)
				}
				again := ref("vm", "u2")
				r.mustCreate(again)
				r.mustDestroy(again)
				r.wantLeft()
			})
		})
	}
}

// TestAnswersAreBounded repeats drains under new names: the create's answer
// stays, and so do the latest.
func TestAnswersAreBounded(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		vm := ref("vm", "u1")
		r.mustCreate(vm)
		for i := range 100 {
			op := vm
			op.OpID = fmt.Sprint("drain-", i)
			if status, err := r.Drain(t.Context(), leader, op, fmt.Sprint("exit ", i)); err != nil || status.ExitCode != i {
				t.Fatalf("drain %d: %+v, %v", i, status, err)
			}
		}
		for range 2 {
			op := vm
			op.OpID = "drain-99"
			if status, err := r.Drain(t.Context(), leader, op, "exit 1"); err != nil || status.ExitCode != 99 {
				t.Errorf("repeat of the last: %+v, %v", status, err)
			}
			r.mustCreate(vm) // the first answer, not a second VM
			r.restart(sim.Options{})
		}
		log, err := os.ReadFile(filepath.Join(r.dir, "host/registry.log"))
		if err != nil || len(log) > 1<<20 {
			t.Errorf("the log has %d bytes, %v", len(log), err)
		}
	})
}
