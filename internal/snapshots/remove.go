package snapshots

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/snapshots/decide"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// remover deletes snapshots.
type remover struct{ *core }

// Remove deletes a snapshot, also one whose environment has ended. It returns
// once its bytes are gone. A host that does not answer leaves the record as an
// error whose deletion goes on by itself.
func (s *remover) Remove(ctx context.Context, id, actor string) error {
	if err := s.cfg.Admit(ctx, actor, "snapshot_delete", map[string]string{"id": id}); err != nil {
		return err
	}
	began := time.Now()
	_, err := run(ctx, s.core, "the deletion of snapshot "+id, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.remove(ctx, removal{
			id: id, reason: fleet.Reason{Actor: actor, Rule: fleet.RuleRequested}, sees: auth.Visible(ctx),
			done: fleet.EventSnapshotDeleted, failed: fleet.EventSnapshotDeleteFailed,
		})
	})
	s.cfg.Done("snapshot_delete", time.Since(began), err)
	return err
}

// Collect deletes a snapshot that is due, if its record is still the one that
// was judged; see converge.Collector.
func (s *remover) Collect(ctx context.Context, id string, revision uint64, reason fleet.Reason) error {
	if s.Held()[id] {
		return fleet.Errorf(fleet.CodeConflict, "snapshot %s is needed by work under way", id)
	}
	r := removal{
		id: id, reason: reason, revision: revision, sees: everybody, collect: true,
		done: fleet.EventSnapshotGCDeleted, failed: fleet.EventSnapshotGCFailed,
	}
	_, err := run(ctx, s.core, "the collection of snapshot "+id, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.remove(ctx, r)
	})
	if fleet.CodeOf(err) == fleet.CodeNotFound {
		return nil // somebody deleted it meanwhile
	}
	return err
}

// removal is a snapshot to delete, and why.
type removal struct {
	id       string
	reason   fleet.Reason
	revision uint64 // of the record; 0: whatever it is
	sees     func(owner string) bool
	collect  bool // its time is over; nobody asked for it

	done, failed string // events
}

func (s *remover) remove(ctx context.Context, r removal) error {
	snap, err := s.claimRemove(ctx, r)
	if err != nil {
		return err
	}
	err = s.guarded(r.id, func() error {
		if err := failpoint.Hit("snapshots.remove.claimed"); err != nil {
			return err
		}
		return s.discardBytes(ctx, snap)
	})
	if err == nil {
		err = failpoint.Hit("snapshots.remove.gone")
	}
	return s.settleRemove(r, snap, err)
}

// claimRemove makes the end durable as an intent: from here on nothing begins
// with the snapshot.
func (s *remover) claimRemove(ctx context.Context, r removal) (*fleet.Snapshot, error) {
	var snap fleet.Snapshot
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := tx.Snapshots().Get(r.id)
		if !ok || !r.sees(row.Owner) {
			return notFound(r.id)
		}
		if r.revision != 0 && row.Revision != r.revision {
			return fleet.Errorf(fleet.CodeConflict, "the record of snapshot %s was written again", r.id)
		}
		allowed := decide.Removable
		if r.collect {
			allowed = decide.Collectable
		}
		if err := allowed(row, tx.Snapshots().All(), tx.VMs().All(), r.sees); err != nil {
			return err
		}
		snap = *row
		snap.State, snap.Discard = fleet.SnapshotStateDeleting, true
		return tx.PutSnapshot(snap)
	})
	return &snap, err
}

// settleRemove takes the record away, or keeps it as an error that is gone on
// with.
func (s *remover) settleRemove(r removal, snap *fleet.Snapshot, failure error) error {
	if r.collect && snap.Mode == fleet.SnapshotModeBuild && snap.LayerKey != "" {
		r.done, r.failed = fleet.EventArtifactGCDeleted, fleet.EventArtifactGCFailed
	}
	err := s.persist(s.base, func(tx *state.Tx) error {
		row, ok := move(tx, snap.SnapshotID, fleet.SnapshotStateError, fleet.SnapshotStateDeleting)
		if !ok {
			return nil
		}
		if failure == nil {
			row.LastError = ""
			tx.Emit(event(&row, r.done, r.reason, map[string]any{"size_bytes": row.SizeBytes}))
			return tx.DeleteSnapshot(row.SnapshotID)
		}
		row.LastError = message(failure)
		if errors.Is(failure, fleet.ErrSnapshotInUse) { // its host knows of a user that no row tells
			row.State, row.Discard = fleet.SnapshotStateReady, snap.Ephemeral
		}
		tx.Emit(event(&row, r.failed, r.reason, nil))
		return tx.PutSnapshot(row)
	})
	if failure != nil {
		s.log.Warn("snapshot not deleted", slog.String("snapshot_id", snap.SnapshotID), slog.String("host_id", snap.HostID), slog.Any("error", failure))
		return fit(failure, "the deletion of snapshot "+snap.SnapshotID)
	}
	if err == nil {
		s.log.Info("snapshot deleted", slog.String("snapshot_id", snap.SnapshotID), slog.String("rule", r.reason.Rule), slog.String("actor", r.reason.Actor))
	}
	return err
}

// discardBytes has the host delete what it has of a snapshot. A host that is no
// longer registered has nobody to ask: should it come back, its bytes are found
// to be nobody's.
func (s *core) discardBytes(ctx context.Context, snap *fleet.Snapshot) error {
	if snap.HostID == "" {
		return nil
	}
	known := false
	if err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		_, known = tx.Hosts().Get(snap.HostID)
		return nil
	}); err != nil || !known {
		return err
	}
	host, err := s.snapshotter(snap.HostID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return host.DeleteSnapshot(ctx, snap.SnapshotID, uid.New())
}
