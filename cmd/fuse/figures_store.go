package main

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/state"
)

// timedJournal exports how long commits take and how they end.
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

// leaseNow reads this process's part in the leadership for a scrape.
func (p *plane) leaseNow() metrics.Lease {
	select {
	case <-p.store.Failed():
		return metrics.Lease{}
	default:
	}
	l := metrics.Lease{Leader: true, Term: p.store.Term()}
	l.Left, l.Forever = p.store.LeaseLeft()
	return l
}

// diskOf reads the file system of a directory for a scrape.
func diskOf(dir string) func() (metrics.Disk, bool) {
	return func() (metrics.Disk, bool) {
		var s syscall.Statfs_t
		if dir == "" || syscall.Statfs(dir, &s) != nil || s.Bsize <= 0 {
			return metrics.Disk{}, false
		}
		size := uint64(s.Bsize)
		return metrics.Disk{FreeBytes: s.Bavail * size, TotalBytes: s.Blocks * size}, true
	}
}
