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
	KindStuckSuspected   Kind = "stuck_suspected"   // say that a VM is over its age, once
	KindStuck            Kind = "stuck"             // claim it
	KindIdleSuspected    Kind = "idle_suspected"    // say that nobody uses a VM, once
	KindIdle             Kind = "idle"              // claim it
	KindIdlePause        Kind = "idle_pause"        // let it stand still instead
	KindHealth           Kind = "health_changed"    // say that a probe's verdict changed
	KindSnapshotGC       Kind = "snapshot_gc"       // delete a snapshot past its retention
	KindArtifactGC       Kind = "artifact_gc"       // delete a layer artifact that nobody uses
	KindBudget           Kind = "budget"            // say that a budget is spent
	KindRetry            Kind = "retry"             // go on with a destroy that did not finish
	KindReap             Kind = "reap"              // settle a destroy that the host confirms
	KindPurgeLives       Kind = "purge_lives"       // forget ended lives
	KindPurgeIdempotency Kind = "purge_idempotency" // forget answers to repeated requests
	KindPurgeEvents      Kind = "purge_events"      // forget old events
	KindPurgeDeadLetters Kind = "purge_dead_letters"
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

	Limit    time.Duration     // that was exceeded, by age or for want of use
	Was, Is  fleet.HealthState // for health
	Pass     Kind              // for a budget: whose
	Snapshot string            // for collections
}

// Destroys says whether the step ends something that nobody asked to end.
func (s Step) Destroys() bool {
	switch s.Kind {
	case KindMissing, KindOrphan, KindStuck, KindIdle, KindSnapshotGC, KindArtifactGC:
		return true
	}
	return false
}

// Tells says whether a step only tells news.
func (s Step) Tells() bool {
	switch s.Kind {
	case KindStuckSuspected, KindIdleSuspected, KindHealth, KindBudget:
		return true
	}
	return false
}

// Unattended says whether a step goes on with an end that no person asked for.
func (s Step) unattended(row *fleet.VM) bool {
	return s.Kind == KindRetry && row != nil && unattended(row)
}

func unattended(row *fleet.VM) bool {
	return row.End != nil && (row.End.Actor == fleet.ActorReconcile || row.End.Actor == fleet.ActorRecovery)
}

// Now is what a step is checked against right before it is applied.
type Now struct {
	Row    *fleet.VM // of its uid; nil: there is none
	Life   Life
	Paused fleet.Pauses
}

// Reason is the step as the reason of what it does.
func (s Step) Reason() fleet.Reason {
	return fleet.Reason{Actor: fleet.ActorReconcile, Rule: s.Rule, Evidence: s.Evidence}
}

// Holds says whether a step may still be applied as things are now, and if
// not, why.
func (s Step) Holds(now Now) (why string, ok bool) {
	row := now.Row
	if by, paused := now.Paused.At(s.HostID); paused && (s.Destroys() || s.unattended(row)) {
		return "paused: " + by.String(), false
	}
	switch s.Kind {
	case KindMissing, KindStuckSuspected, KindStuck, KindIdleSuspected, KindIdle, KindIdlePause, KindHealth:
		if row == nil {
			return "the row is gone", false
		}
		if row.Revision != s.RowRevision {
			return fmt.Sprintf("the row was written again, at revision %d", row.Revision), false
		}
		return s.still(now.Life)
	case KindOrphan, KindDeadLetter:
		if row != nil && !superseded(row, s.HostID, s.Generation) {
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

// still says whether what a running life is to be ended for is still so.
func (s Step) still(life Life) (why string, ok bool) {
	ends := s.Kind == KindStuck || s.Kind == KindIdle || s.Kind == KindIdlePause
	switch {
	case ends && life.Held != "":
		return "held: " + life.Held, false
	case (s.Kind == KindStuck || s.Kind == KindStuckSuspected) && !life.Tasked:
		return "no task is attached any more", false
	case ends && life.Paused:
		return "it stands still on purpose", false
	case (s.Kind == KindIdle || s.Kind == KindIdlePause || s.Kind == KindIdleSuspected) && (life.Open > 0 || life.Quiet < s.Limit):
		return "it is used again", false
	}
	return "", true
}

func of(kind Kind, vm *fleet.VM) Step {
	return Step{Kind: kind, VMID: vm.ID, UID: vm.UID, Generation: vm.Generation, RowRevision: vm.Revision}
}
