package snapshots

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/snapshots/decide"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Bounds of a sweep.
const (
	lookWithin   = 10 * time.Second // at one host
	looksAtOnce  = 32
	mostOrphans  = 50 // deleted in one sweep
	deleteWithin = time.Minute
)

// sweeper compares bytes with records.
type sweeper struct {
	*core
	seen decide.Seen // owned by Run
}

// Run compares, until ctx ends, what hosts keep with the records: bytes that no
// record knows go, records whose bytes are gone become errors.
func (s *sweeper) Run(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := s.Sweep(ctx); errors.Is(err, fleet.ErrNotLeader) {
			return err
		} else if err != nil && ctx.Err() == nil {
			s.log.Warn("snapshots not compared with their hosts", slog.Any("error", err))
		}
	}
}

// Sweep is one comparison. Calls must not overlap.
func (s *sweeper) Sweep(ctx context.Context) error {
	looks, err := s.look(ctx)
	if err != nil || len(looks) == 0 {
		return err
	}
	records := map[string]*fleet.Snapshot{}
	var pauses fleet.Pauses
	if s.cfg.Paused != nil {
		if pauses, err = s.cfg.Paused(); err != nil {
			return err
		}
	}
	if err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		for snap := range tx.Snapshots().All() {
			records[snap.SnapshotID] = snap
		}
		return nil
	}); err != nil {
		return err
	}
	findings, seen := decide.Bytes(looks, records, s.seen)
	s.seen = seen
	var errs []error
	orphans := 0
	for _, f := range findings {
		switch {
		case f.Kind != decide.Orphan:
			errs = append(errs, s.lost(ctx, f))
		case orphans >= mostOrphans:
		default:
			if _, paused := pauses.At(f.HostID); paused {
				continue
			}
			orphans++
			errs = append(errs, s.deleteOrphan(ctx, f))
		}
	}
	return errors.Join(errs...)
}

// look asks every host that keeps snapshots what it has.
func (s *sweeper) look(ctx context.Context) ([]decide.Look, error) {
	type asked struct {
		id   string
		sent uint64
	}
	var hosts []asked
	if err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		for h := range tx.Hosts().All() {
			if h.Facts.Can(fleet.CapSnapshotDisk) || h.Facts.Can(fleet.CapSnapshotLive) {
				hosts = append(hosts, asked{h.ID, tx.Revision()})
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	looks := make([]decide.Look, len(hosts))
	var wg sync.WaitGroup
	slots := make(chan struct{}, looksAtOnce)
	for i, h := range hosts {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, lookWithin)
			defer cancel()
			looks[i] = decide.Look{HostID: h.id, Sent: h.sent}
			host, err := s.snapshotter(h.id)
			if err != nil {
				return
			}
			// What cannot be seen tells nothing; the loop says of the host that it is
			// not seen.
			if l, err := host.Snapshots(ctx); err == nil && l.Complete {
				looks[i].Complete, looks[i].Artifacts = true, l.Snapshots
			}
		})
	}
	wg.Wait()
	return looks, nil
}

// lost makes a record an error whose bytes are gone or spoilt.
func (s *sweeper) lost(ctx context.Context, f decide.Finding) error {
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := tx.Snapshots().Get(f.ID)
		if !ok || row.Revision != f.Revision || row.State != fleet.SnapshotStateReady {
			return nil
		}
		snap := *row
		snap.State, snap.LastError = fleet.SnapshotStateError, f.Evidence
		tx.Emit(event(&snap, fleet.EventSnapshotLost, fleet.Reason{Actor: fleet.ActorReconcile, Rule: fleet.RuleSeen, Evidence: f.Evidence}, nil))
		return tx.PutSnapshot(snap)
	})
	if err == nil {
		s.log.Warn("snapshot is of no use any more", slog.String("snapshot_id", f.ID), slog.String("host_id", f.HostID), slog.String("why", f.Evidence))
	}
	return err
}

// deleteOrphan has a host delete bytes that no record knows, if none has come to
// be meanwhile.
func (s *sweeper) deleteOrphan(ctx context.Context, f decide.Finding) error {
	known := false
	if err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		snap, ok := tx.Snapshots().Get(f.ID)
		known = ok && snap.HostID == f.HostID
		return nil
	}); err != nil || known {
		return err
	}
	host, err := s.snapshotter(f.HostID)
	if err != nil {
		return err
	}
	deleting, cancel := context.WithTimeout(ctx, deleteWithin)
	defer cancel()
	if err := host.DeleteSnapshot(deleting, f.ID, uid.New()); err != nil {
		s.log.Warn("bytes that no record knows not deleted", slog.String("snapshot_id", f.ID), slog.String("host_id", f.HostID), slog.Any("error", err))
		return nil // the next sweep tries again
	}
	s.log.Info("bytes that no record knows deleted", slog.String("snapshot_id", f.ID), slog.String("host_id", f.HostID))
	_, err = s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		tx.Emit(fleet.Event{
			EntityType: fleet.EntitySnapshot, EntityID: f.ID, HostID: f.HostID, Type: fleet.EventSnapshotOrphan,
			Reason: &fleet.Reason{Actor: fleet.ActorReconcile, Rule: fleet.RuleOrphan, Evidence: f.Evidence},
		})
		return nil
	})
	return err
}
