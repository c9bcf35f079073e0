package figures

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/state"
)

// Timed is a journal that exports how long its commits take and how they end.
func Timed(j state.Journal, m *metrics.Metrics) state.Journal { return timedJournal{j, m} }

type timedJournal struct {
	state.Journal
	metrics *metrics.Metrics
}

// Commit implements state.Journal.
func (j timedJournal) Commit(ctx context.Context, term int64, b state.Batch) error {
	began := time.Now()
	err := j.Journal.Commit(ctx, term, b)
	j.metrics.CommitDone(len(b.Writes)+len(b.Events), time.Since(began), commitResult(err))
	return err
}

func commitResult(err error) string {
	switch {
	case err == nil:
		return metrics.CommitOK
	case errors.Is(err, fleet.ErrStaleTerm):
		return metrics.CommitStaleTerm
	case errors.Is(err, state.ErrNotCommitted):
		return metrics.CommitRefused
	}
	return metrics.CommitUnknown
}

// Lease reads this process's part in the leadership for a scrape.
func (p *Plane) Lease() metrics.Lease {
	select {
	case <-p.Store.Failed():
		return metrics.Lease{}
	default:
	}
	l := metrics.Lease{Leader: true, Term: p.Store.Term()}
	l.Left, l.Forever = p.Store.LeaseLeft()
	return l
}

// Disk reads the file system of a directory for a scrape.
func Disk(dir string) func() (metrics.Disk, bool) {
	return func() (metrics.Disk, bool) {
		var s syscall.Statfs_t
		if dir == "" || syscall.Statfs(dir, &s) != nil || s.Bsize <= 0 {
			return metrics.Disk{}, false
		}
		size := uint64(s.Bsize)
		return metrics.Disk{FreeBytes: s.Bavail * size, TotalBytes: s.Blocks * size}, true
	}
}
