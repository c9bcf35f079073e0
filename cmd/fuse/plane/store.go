package plane

import (
	"context"

	"github.com/fusevm/fuse/cmd/fuse/figures"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/postgres"
)

func (p *Plane) openStore(ctx context.Context) (err error) {
	journal := NewStorage(p.settings, p.log)
	p.journal = journal
	if pg, ok := journal.(*postgres.Journal); ok {
		p.metrics.WatchPool(func() metrics.Pool {
			u := pg.Use()
			return metrics.Pool{InUse: u.InUse, Idle: u.Idle, Max: u.Max, Waits: u.Waits, Waited: u.Waited}
		})
	}
	p.Store, err = state.Open(ctx, state.Config{
		Journal: figures.Timed(journal, p.metrics), Lease: journal, Logger: p.log,
		Candidate: p.self,
	})
	return err
}
