package reconcile

import (
	"cmp"
	"time"
)

// Limits bound the passes; zero values mean what each field says.
type Limits struct {
	// OrphanTries is how often an orphan is destroyed before it is given up
	// (seed: OrphanDestroyMaxRetries). Default 5; negative: orphans are left.
	OrphanTries int
	// BackoffCycles caps the wait between retries of a destroy. Default 16.
	BackoffCycles int
	// StuckAfter is the ceiling of an environment that names none (seed:
	// StuckTaskMaxAge). Default 2 h; negative: none.
	StuckAfter time.Duration
	// IdleAfter is the idle timeout of an environment that names none. Default
	// none.
	IdleAfter time.Duration
	// SnapshotRetention is for snapshots that name none (seed:
	// DefaultSnapshotRetention). Default: kept until somebody deletes them.
	SnapshotRetention time.Duration
	// ArtifactIdle is how long a layer artifact is kept unused (seed:
	// ArtifactIdleTTL), and ArtifactMax how many a tenant keeps (seed:
	// ArtifactMaxPerTenant). Default: for ever, and all.
	ArtifactIdle time.Duration
	ArtifactMax  int
	// PerCycle and PerHour are budgets: how many destructions one pass may
	// begin on one host. Defaults 100 and 1000; negative: no limit.
	PerCycle int
	PerHour  int
}

// Defaults of Limits.
const (
	DefaultOrphanTries   = 5
	DefaultBackoffCycles = 16
	DefaultStuckAfter    = 2 * time.Hour
	DefaultPerCycle      = 100
	DefaultPerHour       = 1000
)

// Effective is l with its defaults.
func (l Limits) Effective() Limits {
	l.OrphanTries = cmp.Or(l.OrphanTries, DefaultOrphanTries)
	if l.BackoffCycles <= 0 {
		l.BackoffCycles = DefaultBackoffCycles
	}
	l.StuckAfter = cmp.Or(l.StuckAfter, DefaultStuckAfter)
	l.PerCycle = cmp.Or(l.PerCycle, DefaultPerCycle)
	l.PerHour = cmp.Or(l.PerHour, DefaultPerHour)
	return l
}
