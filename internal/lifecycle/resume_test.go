package lifecycle

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
)

// A drain that its process did not see to the end goes on with the next one,
// under the same operation, so the host does not begin another.
func TestResumeDrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		f.create(t, "t")
		var ops []string
		f.host.drainOp = func(op string) { ops = append(ops, op) }
		f.host.drain = func(ctx context.Context, _ string) (fleet.ExecStatus, error) {
			return fleet.ExecStatus{}, pause(ctx, time.Minute)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := f.svc.Drain(ctx, "fuse-t", "user:a"); err == nil {
			t.Fatal("the drain has ended already")
		}
		dying, die := context.WithCancel(t.Context())
		die() // the process ends in the middle
		if err := f.svc.Close(dying); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		vm := f.vm(t, "fuse-t")
		if vm.State != fleet.VMStateDraining || vm.DrainResult != "" {
			t.Fatalf("left as %s %q", vm.State, vm.DrainResult)
		}
		next, err := New(f.cfg)
		if err != nil {
			t.Fatal(err)
		}
		f.svc = next
		if err := next.ResumeDrain(t.Context(), vm.ID, vm.UID); err != nil {
			t.Fatal(err)
		}
		if vm := f.vm(t, "fuse-t"); vm.State != fleet.VMStateDraining || vm.DrainResult != drainedOK {
			t.Errorf("resumed to %s %q", vm.State, vm.DrainResult)
		}
		if len(ops) != 2 || ops[0] != ops[1] {
			t.Errorf("operations %q", ops)
		}
		// What has an outcome, or is not there, is left alone.
		for _, uid := range []string{vm.UID, "gone"} {
			if err := next.ResumeDrain(t.Context(), vm.ID, uid); err != nil {
				t.Error(err)
			}
		}
		if len(ops) != 2 {
			t.Errorf("operations %q", ops)
		}
	})
}

// A host that does not take this server's store has made nothing, and would not
// take a destroy either.
func TestCreateAtAFencedHostLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		fenced := fleet.Errorf(fleet.CodeConflict, "%w: it is a copy", fleet.ErrFenced).With(fleet.DetailRemedy, "confirm it")
		f.host.create = func(context.Context, provider.CreateRequest) error { return fenced }
		f.host.destroy = func(context.Context, provider.Ref) error { return fenced }
		_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"})
		var fe *fleet.Error
		if !errors.As(err, &fe) || fe.Code != fleet.CodeConflict || fe.Details[fleet.DetailRemedy] != "confirm it" {
			t.Errorf("got %v", err)
		}
		f.wantNothingLeft(t)
		f.wantTask(t, "t", fleet.TaskRunFailed)
	})
}

// A host that made the environment and takes no change any more still has it:
// the row stays until the host has cleared everything.
func TestAHostThatFencesInTheMiddleOfACreate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		fenced := fleet.Errorf(fleet.CodeConflict, "%w: another store was confirmed", fleet.ErrFenced)
		f.host.upload = func(context.Context, []fleet.GuestFile) error { return fenced }
		f.host.destroy = func(context.Context, provider.Ref) error { return fenced }
		if _, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"}); !errors.Is(err, fleet.ErrFenced) {
			t.Errorf("got %v", err)
		}
		if vm := f.vm(t, "fuse-t"); vm.State != fleet.VMStateDestroying || len(f.host.has()) != 1 {
			t.Fatalf("row %+v, host %v", vm, f.host.has())
		}
		f.host.destroy = nil
		if err := f.svc.Destroy(t.Context(), "fuse-t", fleet.Reason{Actor: "user:ann", Rule: fleet.RuleManualDestroy}); err != nil {
			t.Errorf("destroy: %v", err)
		}
		f.wantNothingLeft(t)
	})
}
