package lifecycle

import (
	"fmt"

	"github.com/fusevm/fuse/internal/fleet"
)

func notFound(id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "environment %.140q: %w", id, fleet.ErrVMNotFound).With(fleet.DetailScope, id)
}

func notRunning(vm *fleet.VM, verb string) error {
	return fleet.Errorf(fleet.CodeConflict, "cannot %s environment %s while it is %s: %w", verb, vm.ID, vm.State, fleet.ErrVMNotRunning).
		With(fleet.DetailScope, vm.ID).With(fleet.DetailUsage, fmt.Sprintf("state %s", vm.State))
}
