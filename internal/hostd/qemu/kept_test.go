package qemu

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/thaw"
	"github.com/fusevm/fuse/internal/testkit"
)

// errDied stands for the end of the agent.
var errDied = errors.New("the agent has died")

// TestAMachineThatCountsGoesOnAfterItsAgentDied lets the agent die after a
// renewed machine counts and before its processes go on: nobody but the next
// agent can let them.
func TestAMachineThatCountsGoesOnAfterItsAgentDied(t *testing.T) {
	b := newBench(t, Config{BootTimeout: 8 * time.Minute})
	vm := b.vm()
	inst, err := b.start(vm)
	if err != nil {
		t.Fatal(err)
	}
	b.sh(inst, "echo word > /root/word; (while :; do echo >> /root/beat; sleep 0.1; done) >/dev/null 2>&1 </dev/null &")
	snap := b.artifact()
	defer func() { b.clearUp(inst, vm, snap) }()
	if _, err := b.d.Snapshot(t.Context(), vm, driver.SnapshotRequest{To: snap, Live: true}); err != nil {
		t.Fatal(err)
	}
	with := inventory(t, b.registry)
	for _, v := range []struct {
		cause string
		call  func() (driver.Revived, error)
	}{
		{fleet.ThawRestore, func() (driver.Revived, error) { return b.d.Restore(t.Context(), vm, snap, nil) }},
		{fleet.ThawResume, func() (driver.Revived, error) {
			if _, err := b.d.Pause(t.Context(), vm, nil); err != nil {
				return driver.Revived{}, err
			}
			return b.d.Resume(t.Context(), vm, nil)
		}},
	} {
		r, err := v.call()
		if err != nil {
			t.Fatal(v.cause, err)
		}
		b.keptOnly(vm, r, v.cause)
		b.reopen(r.Instance)
		ctx, cancel := context.WithTimeout(t.Context(), bootWithin)
		inst, err = b.d.Adopt(ctx, vm)
		cancel()
		if err != nil {
			t.Fatalf("%s: adopt: %v", v.cause, err)
		}
		testkit.Eventually(t, testWithin, "the guest goes on", func() bool {
			info, err := inst.Guest().Info(t.Context())
			return err == nil && !info.Frozen
		})
		if got := b.sh(inst, "cat /root/word; a=$(wc -c < /root/beat); for n in $(seq 100); do sleep 1; [ $a = $(wc -c < /root/beat) ] || break; done; [ $a != $(wc -c < /root/beat) ] && echo beats"); got != "word\nbeats" {
			t.Errorf("%s: the machine says %q", v.cause, got)
		}
		if got := len(inventory(t, b.registry)); got != len(with) {
			t.Errorf("%s: the host has %d objects, and had %d", v.cause, got, len(with))
		}
	}
}

// keptOnly renews a machine and has it count, and no more.
func (b *bench) keptOnly(vm driver.VM, r driver.Revived, cause string) {
	b.t.Helper()
	g, ok := thaw.Of(r.Instance.Guest())
	if !ok {
		b.t.Fatal("the guest cannot be renewed")
	}
	for range 5 { // on a busy machine the clock cannot be told well enough
		_, err := thaw.Do(context.Background(), g, thaw.Request{
			Key: r.ThawKey, Cause: cause, VM: vm, Address: r.Guest.Address, Nameservers: r.Guest.Nameservers,
			Identity: driver.Identity{Hostname: r.Guest.Hostname, MachineID: r.Guest.MachineID, Token: r.Guest.Token, CertPEM: r.Guest.CertPEM, KeyPEM: r.Guest.KeyPEM},
			Keep:     func(ctx context.Context) error { return errors.Join(r.Keep(ctx), errDied) },
		})
		if errors.Is(err, errDied) {
			return
		}
		if !errors.Is(err, thaw.ErrLate) {
			b.t.Fatal(err)
		}
	}
	b.t.Fatal("the machine is too slow to be renewed")
}

// TestAnAgentThatDiesInAForkHurtsNobody lets the agent die at each step of a
// fork. The next one removes what there is of it, as a create that was not
// answered is, and the source and its capture are as they were.
func TestAnAgentThatDiesInAForkHurtsNobody(t *testing.T) {
	b := newBench(t, Config{BootTimeout: 8 * time.Minute})
	vm := b.vm()
	inst, err := b.start(vm)
	if err != nil {
		t.Fatal(err)
	}
	b.sh(inst, "echo word > /root/word; sync")
	snap := b.artifact()
	defer func() { b.clearUp(inst, vm, snap) }()
	if _, err := b.d.Snapshot(t.Context(), vm, driver.SnapshotRequest{To: snap, Live: true}); err != nil {
		t.Fatal(err)
	}
	with := inventory(t, b.registry)
	seen := map[string]bool{}
	var child driver.VM
	for {
		died := dieAt(func(step func(string)) {
			child = b.vm()
			if r, err := b.d.Fork(context.Background(), child, b.identity(child), snap, step); err != nil {
				t.Errorf("fork: %v", err)
			} else {
				b.thaw(child, r, fleet.ThawFork)
				b.end(r.Instance, child)
			}
		}, func(s string) bool {
			if seen[s] || testkit.Count(0, 1) == 0 && s != stepDisk && s != stepResume {
				return false
			}
			seen[s] = true
			return true
		})
		if died == "" {
			break
		}
		b.reopen(inst)
		if inst, err = b.d.Adopt(t.Context(), vm); err != nil {
			t.Fatalf("%s: adopt: %v", died, err)
		}
		if err := b.d.Remove(t.Context(), child); err != nil {
			t.Errorf("%s: remove: %v", died, err)
		}
		if rep, err := b.d.SweepSnapshots(t.Context(), []driver.Artifact{snap}); err != nil || len(rep.Removed) > 0 {
			t.Errorf("%s: swept %+v, %v", died, rep, err)
		}
		if left, err := os.ReadDir(child.Dir); err != nil || len(left) > 0 {
			t.Errorf("%s: left of the fork: %v, %v", died, left, err)
		}
		if got := b.sh(inst, "cat /root/word"); got != "word" {
			t.Errorf("%s: the source says %q", died, got)
		}
		if got := inventory(t, b.registry); !slices.Equal(got, with) {
			t.Errorf("%s: the host has %q and had %q", died, got, with)
		}
	}
	if len(seen) < 2 {
		t.Errorf("it died at %v", seen)
	}
	if _, err := b.d.Inspect(t.Context(), snap, true); err != nil {
		t.Error(err)
	}
}

// clearUp removes a machine and its capture, however far a test came.
func (b *bench) clearUp(inst driver.Instance, vm driver.VM, a driver.Artifact) {
	if inst != nil {
		_ = inst.Close() // it may be closed already
	}
	if err := errors.Join(b.d.Remove(context.Background(), vm), b.d.Discard(context.Background(), a)); err != nil {
		b.t.Error(err)
	}
}
