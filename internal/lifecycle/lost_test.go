package lifecycle

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/ending"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// A host that is given up takes what is under way there with it: who waits is
// answered at once, and nothing is recorded or asked of it afterwards.
func TestAHostIsLostDuringWork(t *testing.T) {
	why := fleet.Reason{Actor: "user:op", Rule: fleet.RuleHostLost, Evidence: "host h1 was forgotten"}
	lose := func(t *testing.T, f *fixture, hostID string) {
		var lost []*fleet.VM
		f.update(t, func(tx *state.Tx) (err error) {
			if lost, err = ending.Lost(tx, hostID, why); err != nil {
				return err
			}
			return tx.DeleteHost(hostID)
		})
		for _, vm := range lost {
			f.svc.Interrupt(vm.UID)
		}
	}
	for name, begin := range map[string]func(t *testing.T, f *fixture, entered chan struct{}) (wait func() error){
		"a create": func(t *testing.T, f *fixture, entered chan struct{}) func() error {
			f.host.create = func(ctx context.Context, _ provider.CreateRequest) error {
				close(entered)
				return pause(ctx, time.Hour)
			}
			created := make(chan error, 1)
			go func() {
				_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"})
				created <- err
			}()
			return func() error { return <-created }
		},
		"a drain": func(t *testing.T, f *fixture, entered chan struct{}) func() error {
			if _, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"}); err != nil {
				t.Fatal(err)
			}
			f.host.drain = func(ctx context.Context, _ string) (fleet.ExecStatus, error) {
				close(entered)
				return fleet.ExecStatus{}, pause(ctx, time.Hour)
			}
			drained := make(chan error, 1)
			go func() {
				_, err := f.svc.Drain(t.Context(), "fuse-t", "user:a")
				drained <- err
			}()
			return func() error { return <-drained }
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := setup(t, nil)
				entered := make(chan struct{})
				wait := begin(t, f, entered)
				<-entered
				start, hostID := time.Now(), f.vm(t, "fuse-t").HostID
				lose(t, f, hostID)
				if err := wait(); err == nil {
					t.Error("it succeeded")
				}
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("it took %s", took)
				}
				if life := f.life(t, "fuse-t"); life.Reason != why || life.State != fleet.VMStateFailed {
					t.Errorf("life %+v", life)
				}
				f.wantTask(t, "t", fleet.TaskRunFailed)
				synctest.Wait() // the work is taken off the list after it has answered
				if f.find("fuse-t") != nil || f.svc.inFlight() != 0 {
					t.Errorf("row %+v, %d pieces of work are left", f.find("fuse-t"), f.svc.inFlight())
				}
			})
		})
	}
}

// A drain of one life does not touch the next one of its id.
func TestDrainOfOneLife(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		if _, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.svc.DrainLifeWhile(t.Context(), "fuse-t", "another", "user:a", nil); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("another life: %v", err)
		}
		if vm := f.vm(t, "fuse-t"); vm.State != fleet.VMStateRunning {
			t.Errorf("it is %s", vm.State)
		}
		uid, not := f.vm(t, "fuse-t").UID, func(*state.ReadTx) bool { return false }
		if _, err := f.svc.DrainLifeWhile(t.Context(), "fuse-t", uid, "user:a", not); fleet.CodeOf(err) != fleet.CodeConflict {
			t.Errorf("why it drains does not hold any more: %v", err)
		}
		if err := f.svc.DestroyLifeWhile(t.Context(), "fuse-t", uid, manual("user:a"), not); err != nil {
			t.Errorf("why it ends does not hold any more: %v", err)
		}
		if vm := f.vm(t, "fuse-t"); vm.State != fleet.VMStateRunning || vm.Generation != 1 {
			t.Errorf("it was touched all the same: %+v", vm)
		}
		if _, err := f.svc.DrainLifeWhile(t.Context(), "fuse-t", uid, "user:a", func(*state.ReadTx) bool { return true }); err != nil {
			t.Error(err)
		}
	})
}
