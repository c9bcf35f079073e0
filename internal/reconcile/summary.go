package reconcile

import (
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// HostResult is what came of looking at one host.
type HostResult struct {
	HostID  string
	Quality fleet.ObservationQuality
	Reason  string // why it is not complete
	Took    time.Duration
	Tracked int // rows on it
	Listed  int // VMs of ours that it listed; 0 unless complete
}

// Summary counts one cycle (seed: ReconcileSummary). What steps did is counted
// in the cycle in which they finished.
type Summary struct {
	TrackedVMs          int
	ProviderVMs         int // a host that was not seen counts with its last list
	OrphansDestroyed    int
	OrphansFailed       int
	OrphansDeadLettered int
	StuckTasksSuspected int
	StuckTasksFailed    int
	IdleVMsSuspected    int
	IdleVMsFailed       int
	VMsMissingProvider  int
	HealthChecked       int // environments that answered their probe's verdict
	HealthFailing       int // and of which it is failing
	Duration            time.Duration

	MissingSuspected int // first strikes
	HealthChanged    int
	SnapshotsDeleted int
	ArtifactsDeleted int
	CollectsFailed   int // of either
	Held             int // ends that a hold put off
	Withheld         int // ends that a pause put off
	Waiting          int // ends that wait for a budget
	BudgetsSpent     int // budgets that came to be
	DestroysRetried  int
	DestroysFailed   int // attempts of any pass that did not confirm the end
	Reaped           int
	Purged           int // records
	Foreign          int // VMs of other fleets on our hosts, untouched
	Dropped          int // steps that no longer held when their turn came
	InFlight         int // steps still at work when the cycle ended
	HostsSeen        int
	HostsUnseen      []string
	Hosts            []HostResult
	// Unverified are running VMs whose host has not been seen completely
	// since this process started.
	Unverified int
	// Skipped says which passes were left out and why.
	Skipped []string
	// Aborted says why the cycle ended early, or "".
	Aborted string
}

// Add adds the counts and lists of another part of the same cycle.
func (s *Summary) Add(o Summary) {
	s.TrackedVMs += o.TrackedVMs
	s.ProviderVMs += o.ProviderVMs
	s.OrphansDestroyed += o.OrphansDestroyed
	s.OrphansFailed += o.OrphansFailed
	s.OrphansDeadLettered += o.OrphansDeadLettered
	s.StuckTasksSuspected += o.StuckTasksSuspected
	s.StuckTasksFailed += o.StuckTasksFailed
	s.IdleVMsSuspected += o.IdleVMsSuspected
	s.IdleVMsFailed += o.IdleVMsFailed
	s.VMsMissingProvider += o.VMsMissingProvider
	s.HealthChecked += o.HealthChecked
	s.HealthFailing += o.HealthFailing
	s.HealthChanged += o.HealthChanged
	s.SnapshotsDeleted += o.SnapshotsDeleted
	s.ArtifactsDeleted += o.ArtifactsDeleted
	s.CollectsFailed += o.CollectsFailed
	s.Held += o.Held
	s.Withheld += o.Withheld
	s.Waiting += o.Waiting
	s.BudgetsSpent += o.BudgetsSpent
	s.MissingSuspected += o.MissingSuspected
	s.DestroysRetried += o.DestroysRetried
	s.DestroysFailed += o.DestroysFailed
	s.Reaped += o.Reaped
	s.Purged += o.Purged
	s.Foreign += o.Foreign
	s.Dropped += o.Dropped
	s.InFlight += o.InFlight
	s.HostsSeen += o.HostsSeen
	s.Unverified += o.Unverified
	s.HostsUnseen = append(s.HostsUnseen, o.HostsUnseen...)
	s.Hosts = append(s.Hosts, o.Hosts...)
	s.Skipped = append(s.Skipped, o.Skipped...)
	if s.Aborted == "" {
		s.Aborted = o.Aborted
	}
	s.Duration = max(s.Duration, o.Duration)
}

// Applied counts how a step ended.
func (s *Summary) Applied(kind Kind, err error) {
	if err != nil {
		switch kind {
		case KindSnapshotGC, KindArtifactGC:
			s.CollectsFailed++
		case KindOrphan:
			s.OrphansFailed++
			s.DestroysFailed++
		default:
			s.DestroysFailed++
		}
		return
	}
	switch kind {
	case KindStuckSuspected:
		s.StuckTasksSuspected++
	case KindStuck:
		s.StuckTasksFailed++
	case KindIdleSuspected:
		s.IdleVMsSuspected++
	case KindIdle:
		s.IdleVMsFailed++
	case KindHealth:
		s.HealthChanged++
	case KindSnapshotGC:
		s.SnapshotsDeleted++
	case KindArtifactGC:
		s.ArtifactsDeleted++
	case KindBudget:
		s.BudgetsSpent++
	case KindMissing:
		s.VMsMissingProvider++
	case KindOrphan:
		s.OrphansDestroyed++
	case KindDeadLetter:
		s.OrphansDeadLettered++
	case KindRetry:
		s.DestroysRetried++
	case KindReap:
		s.Reaped++
	}
}
