package reconcile

import "time"

// Summary counts one cycle (seed: ReconcileSummary, as far as its passes
// exist). What steps did is counted in the cycle in which they finished.
type Summary struct {
	TrackedVMs          int
	ProviderVMs         int // a host that was not seen counts with its last list
	OrphansDestroyed    int
	OrphansFailed       int
	OrphansDeadLettered int
	VMsMissingProvider  int
	Duration            time.Duration

	MissingSuspected int // first strikes
	DestroysRetried  int
	DestroysFailed   int // attempts of any pass that did not confirm the end
	Reaped           int
	Purged           int // records
	Foreign          int // VMs of other fleets on our hosts, untouched
	Dropped          int // steps that no longer held when their turn came
	InFlight         int // steps still at work when the cycle ended
	HostsSeen        int
	HostsUnseen      []string
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
	s.VMsMissingProvider += o.VMsMissingProvider
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
	s.Skipped = append(s.Skipped, o.Skipped...)
	if s.Aborted == "" {
		s.Aborted = o.Aborted
	}
	s.Duration = max(s.Duration, o.Duration)
}

// Applied counts how a step ended.
func (s *Summary) Applied(kind Kind, err error) {
	if err != nil {
		if kind == KindOrphan {
			s.OrphansFailed++
		}
		s.DestroysFailed++
		return
	}
	switch kind {
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
