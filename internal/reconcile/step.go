package reconcile

import (
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Kind is what a step does.
type Kind string

// Kinds of step.
const (
	KindMissing          Kind = "missing"           // claim a VM that its host no longer has
	KindOrphan           Kind = "orphan"            // destroy a VM that no row knows
	KindDeadLetter       Kind = "dead_letter"       // give such a VM up
	KindRetry            Kind = "retry"             // go on with a destroy that did not finish
	KindReap             Kind = "reap"              // settle a destroy that the host confirms
	KindPurgeLives       Kind = "purge_lives"       // forget ended lives
	KindPurgeIdempotency Kind = "purge_idempotency" // forget answers to repeated requests
	KindPurgeEvents      Kind = "purge_events"      // forget old events
)

// Step is one thing to do, with why. Steps are comparable with ==.
type Step struct {
	Kind       Kind
	HostID     string
	VMID       string
	UID        string
	Generation int64
	// RowRevision is that of the row the step was decided on; 0 without one.
	RowRevision uint64
	Rule        string
	Look        string // id of the look
	// LookRevision is the state's revision before the look was sent.
	LookRevision uint64
	// Count is the strikes or tries up to and with this step.
	Count    int
	Before   time.Time // for purges: what is older goes
	Evidence string
}

// Reason is the step as the reason of what it does.
func (s Step) Reason() fleet.Reason {
	return fleet.Reason{Actor: fleet.ActorReconcile, Rule: s.Rule, Evidence: s.Evidence}
}

// Holds says whether a step may still be applied, given the row of its uid as
// it is now (nil: there is none), and if not, why.
func (s Step) Holds(row *fleet.VM) (why string, ok bool) {
	switch s.Kind {
	case KindMissing:
		if row == nil {
			return "the row is gone", false
		}
		if row.Revision != s.RowRevision {
			return fmt.Sprintf("the row was written again, at revision %d", row.Revision), false
		}
	case KindOrphan, KindDeadLetter:
		if row != nil {
			return "a row tracks it", false
		}
	case KindRetry, KindReap:
		if row == nil {
			return "the row is gone", false
		}
		if row.State != fleet.VMStateDestroying || row.HostID != s.HostID {
			return fmt.Sprintf("the row is %s on host %q", row.State, row.HostID), false
		}
	}
	return "", true
}

func of(kind Kind, vm *fleet.VM) Step {
	return Step{Kind: kind, VMID: vm.ID, UID: vm.UID, Generation: vm.Generation, RowRevision: vm.Revision}
}
