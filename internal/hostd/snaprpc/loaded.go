package snaprpc

import (
	"context"

	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/golden"
	"github.com/fusevm/fuse/internal/hostd/snapstore"
)

// defaultRAM is what the memory of captures may take of the host's.
const defaultRAM = 1 << 30

// note counts the memory of captures that exist in memory alone: what their
// forks share is no machine's.
func (s *Service) note(ctx context.Context) {
	if s.Store == nil {
		return
	}
	var volatile []string
	for _, r := range s.Store.In(snapstore.Writing, snapstore.Ready, snapstore.Deleting) {
		if r.Info == nil || r.Info.Volatile {
			volatile = append(volatile, s.Store.Artifact(r.ID).ID)
		}
	}
	s.Memory.Note(context.WithoutCancel(ctx), volatile)
}

// trim gives back the memory of the captures that were used longest ago, so that
// what stays loaded keeps to its bound. Those that exist in memory alone stay.
func (s *Service) trim(ctx context.Context) {
	holder, ok := s.Driver.(driver.MemoryHolder)
	if !ok || s.Store == nil {
		return
	}
	all, err := holder.Held(ctx)
	if err != nil {
		s.Log.Warn("memory of snapshots not looked at", "error", err)
		return
	}
	var entries []golden.Entry
	held := map[string]int64{}
	for _, u := range s.Store.Uses() {
		if u.Info != nil && !u.Info.Volatile {
			entries = append(entries, golden.Entry{Key: u.ID, Used: u.Last, Busy: u.Busy})
			held[u.ID] = all[u.ID]
		}
	}
	budget := s.RAM
	if budget == 0 {
		budget = defaultRAM
	}
	for _, id := range golden.Unload(entries, held, max(budget, 0)) {
		if err := holder.Unload(ctx, s.Store.Artifact(id)); err != nil {
			s.Log.Warn("memory of a snapshot not given back", "snapshot_id", id, "error", err)
		}
	}
}
