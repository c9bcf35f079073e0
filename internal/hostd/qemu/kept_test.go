package qemu

import (
	"context"
	"errors"
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
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		inst, err = b.d.Adopt(ctx, vm)
		cancel()
		if err != nil {
			t.Fatalf("%s: adopt: %v", v.cause, err)
		}
		testkit.Eventually(t, testWithin, "the guest goes on", func() bool {
			info, err := inst.Guest().Info(t.Context())
			return err == nil && !info.Frozen
		})
		if got := b.sh(inst, "cat /root/word; a=$(wc -c < /root/beat); sleep 1; [ $a != $(wc -c < /root/beat) ] && echo beats"); got != "word\nbeats" {
			t.Errorf("%s: the machine says %q", v.cause, got)
		}
		if got := len(inventory(t, b.registry)); got != len(with) {
			t.Errorf("%s: the host has %d objects, and had %d", v.cause, got, len(with))
		}
	}
	b.end(inst, vm)
	if err := b.d.Discard(t.Context(), snap); err != nil {
		t.Error(err)
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
