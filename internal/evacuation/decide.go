package evacuation

import (
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// action is what is to be done with one environment now.
type action int

const (
	wait  action = iota // something else is under way, or its grace is not over
	leave               // move it, or stop its services if that cannot be
	end
)

// decide says what is to be done with an environment of a host that is being
// drained, and for an end on what evidence.
func decide(d *fleet.HostDrain, vm *fleet.VM, now time.Time) (action, string) {
	switch {
	case vm.State == fleet.VMStateDestroying:
		return wait, "" // the loop sees to it
	case !now.Before(d.Deadline):
		return end, fmt.Sprintf("host %s was drained since %s; at the deadline, %s, it was %s",
			vm.HostID, d.StartedAt.UTC().Format(time.RFC3339), d.Deadline.UTC().Format(time.RFC3339), standing(vm))
	case vm.Paused != nil && vm.State == fleet.VMStateRunning:
		// It has no service to stop, and its host takes no resume.
		if since := later(d.StartedAt, vm.Paused.At); !now.Before(since.Add(d.Grace)) {
			return end, fmt.Sprintf("host %s was drained since %s; it stood still there (%s) and the grace of %s is over",
				vm.HostID, d.StartedAt.UTC().Format(time.RFC3339), vm.Activity(), d.Grace)
		}
		return wait, ""
	case vm.State == fleet.VMStateRunning:
		return leave, ""
	case vm.State == fleet.VMStateDraining && vm.DrainResult != "" && !now.Before(vm.UpdatedAt.Add(d.Grace)):
		return end, fmt.Sprintf("host %s was drained since %s; its own drain ended at %s (%s) and the grace of %s is over",
			vm.HostID, d.StartedAt.UTC().Format(time.RFC3339), vm.UpdatedAt.UTC().Format(time.RFC3339), vm.DrainResult, d.Grace)
	}
	return wait, "" // it is being made, or its services are stopping
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// standing is what an environment is doing, for people and counts.
func standing(vm *fleet.VM) string {
	if vm.State == fleet.VMStateDraining && vm.DrainResult != "" {
		return "drained"
	}
	return string(vm.State)
}
