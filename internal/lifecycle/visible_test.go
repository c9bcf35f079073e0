package lifecycle

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
)

// An id may have got another owner since the edge looked: the verbs look once
// more where they act. Work that no request asked for sees everything.
func TestVerbsActOnWhatTheCallerSees(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		vm, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t", Owner: "y"})
		if err != nil {
			t.Fatal(err)
		}
		x := auth.With(t.Context(), auth.Principal{Name: "x", Role: fleet.RoleUser})
		_, drain := f.svc.Drain(x, vm.ID, "user:x")
		_, complete := f.svc.Complete(x, vm.ID, "user:x", "request r1")
		_, byTask := f.svc.Complete(x, "t", "user:x", "request r1")
		// Whose task id it takes, and how that is, is not another's to know.
		_, err = f.svc.Create(x, CreateRequest{TaskID: "t", Owner: "x"})
		var taken *fleet.Error
		if !errors.As(err, &taken) || taken.Code != fleet.CodeConflict || strings.Contains(fmt.Sprint(taken, taken.Details), vm.ID) ||
			strings.Contains(err.Error(), string(fleet.VMStateRunning)) || taken.Details[fleet.DetailHostID] != "" {
			t.Errorf("the task id of another: %v, %v", err, taken)
		}
		for verb, err := range map[string]error{"drain": drain, "complete": complete, "complete by task": byTask, "destroy": f.svc.Destroy(x, vm.ID, manual("user:x"))} {
			if fleet.CodeOf(err) != fleet.CodeNotFound {
				t.Errorf("%s by another: %v", verb, err)
			}
		}
		if row := f.vm(t, vm.ID); row.State != fleet.VMStateRunning || row.Revision != vm.Revision {
			t.Errorf("it is %+v", row)
		}
		y := auth.With(t.Context(), auth.Principal{Name: "y", Role: fleet.RoleUser})
		if err := f.svc.Destroy(y, vm.ID, manual("user:y")); err != nil {
			t.Errorf("its owner: %v", err)
		}
		if err := f.svc.Destroy(x, vm.ID, manual("user:x")); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("its end, to another: %v", err)
		}
		if err := f.svc.Destroy(t.Context(), vm.ID, manual("user:y")); err != nil {
			t.Errorf("its end, to the loop: %v", err)
		}
	})
}
