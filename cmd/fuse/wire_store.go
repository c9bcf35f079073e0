package main

import (
	"context"

	"github.com/fusevm/fuse/internal/state"
)

func (p *plane) openStore(ctx context.Context) (err error) {
	journal := newStorage(p.settings, p.log)
	p.journal = journal
	p.store, err = state.Open(ctx, state.Config{
		Journal: timedJournal{journal, p.metrics}, Lease: journal, Logger: p.log,
		Candidate: p.self,
	})
	return err
}
