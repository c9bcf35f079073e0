package snapshots

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/snapshots/decide"
	"github.com/fusevm/fuse/internal/state"
)

// restorer puts environments back.
type restorer struct{ *core }

// Restore puts the environment that a snapshot was taken of back to it, and
// returns once its guest has answered. It has to be the same life, and to run.
// The host tries nothing that it cannot take back: when a restore fails the
// environment runs on as before, or its end shows as any other.
func (s *restorer) Restore(ctx context.Context, id, actor string, tell func(provider.SnapshotProgress)) (*fleet.VM, error) {
	if err := s.cfg.Admit(ctx, actor, "restore", map[string]string{"id": id}); err != nil {
		return nil, err
	}
	began := time.Now()
	p := &progress{fn: tell}
	defer p.detach()
	vm, err := run(ctx, s.core, "the restore of snapshot "+id, func(ctx context.Context) (*fleet.VM, error) {
		return s.restore(ctx, id, actor, p)
	})
	s.cfg.Done("restore", time.Since(began), err)
	return vm, err
}

func (s *restorer) restore(ctx context.Context, id, actor string, tell *progress) (*fleet.VM, error) {
	first, err := s.get(id, auth.Visible(ctx))
	if err != nil {
		return nil, err
	}
	unlock, err := s.cfg.Locks.Take(ctx, first.VMID)
	if err != nil {
		return nil, fit(err, "the restore")
	}
	defer unlock()
	snap, vm, err := s.claimRestore(ctx, id, actor)
	if err != nil {
		return nil, err
	}
	defer s.hold(id)()
	var out provider.Resumed
	err = s.guarded(id, func() error {
		if err := failpoint.Hit("snapshots.restore.claimed"); err != nil {
			return err
		}
		env, err := s.checkpointer(vm)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		emit, end := s.noted(id, tell)
		defer end()
		if out, err = env.RestoreSnapshot(ctx, provider.RestoreRequest{SnapshotID: id, Digest: snap.Digest, Kind: snap.Kind, Progress: emit}); err != nil {
			return err
		}
		return failpoint.Hit("snapshots.restore.done")
	})
	if errors.Is(err, provider.ErrNoAnswer) {
		err = fleet.Wrap(fleet.CodeOf(err), err, fmt.Sprintf("the host of environment %s did not answer: whether it was put back to snapshot %s is not known", vm.ID, id)).
			With(fleet.DetailHostID, vm.HostID).With(fleet.DetailRemedy, "look at it, and restore it again")
	}
	row, settled := s.settleRestore(snap, vm, out, err)
	if err != nil {
		s.log.Warn("environment not restored", slog.String("snapshot_id", id), slog.String("vm_id", vm.ID), slog.String("host_id", vm.HostID), slog.Any("error", err))
		return nil, fit(err, "the restore of "+vm.ID)
	}
	if settled != nil {
		return nil, settled
	}
	s.log.Info("environment restored", slog.String("snapshot_id", id), slog.String("vm_id", vm.ID), slog.String("kind", string(snap.Kind)))
	if s.cfg.Restored != nil && row.State == fleet.VMStateRunning {
		s.cfg.Restored(ctx, row)
	}
	return row, nil
}

// claimRestore refuses a snapshot of another life, or that is not ready.
func (s *restorer) claimRestore(ctx context.Context, id, actor string) (*fleet.Snapshot, *fleet.VM, error) {
	var snap fleet.Snapshot
	var vm *fleet.VM
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := tx.Snapshots().Get(id)
		if !ok || !auth.Visible(ctx)(row.Owner) {
			return notFound(id)
		}
		now, ok := tx.VMs().Get(row.VMID)
		if !ok || now.UID != row.UID {
			return fleet.Errorf(fleet.CodeNotFound, "environment %s, of which snapshot %s was taken, has ended: %w", row.VMID, id, fleet.ErrVMNotFound).
				With(fleet.DetailScope, row.VMID).With(fleet.DetailRemedy, "create another one from it: seed_snapshot_id, or fuse create --snapshot "+id)
		}
		if row.State != fleet.SnapshotStateReady || row.Discard {
			return decide.WrongState(row, "restore", "choose one that is ready, or wait until it is")
		}
		var err error
		if vm, err = capturable(&tx.ReadTx, row.VMID, "restore", auth.Visible(ctx)); err != nil {
			return err
		}
		capability := fleet.CapSnapshotDisk
		if row.Kind == fleet.SnapshotKindLive {
			capability = fleet.CapSnapshotLive
		}
		if err := able(&tx.ReadTx, vm.HostID, capability, "restore such snapshots"); err != nil {
			return err
		}
		if vm.HostID != row.HostID {
			return fleet.Errorf(fleet.CodeConflict, "snapshot %s is on host %s and environment %s on host %s", id, row.HostID, vm.ID, vm.HostID).
				With(fleet.DetailHostID, row.HostID)
		}
		snap = *row
		snap.State = fleet.SnapshotStateRestoring
		tx.Emit(event(&snap, fleet.EventSnapshotRestoring, fleet.Reason{Actor: actor, Rule: fleet.RuleRequested}, nil))
		return tx.PutSnapshot(snap)
	})
	return &snap, vm, err
}

// useless says whether an error of a host means that the snapshot can not be
// used ever.
func useless(err error) bool {
	return errors.Is(err, fleet.ErrSnapshotCorrupt) || errors.Is(err, fleet.ErrSnapshotNotFound)
}

// settleRestore lets go of the snapshot, which a restore only reads, and records
// what the environment goes on as.
func (s *restorer) settleRestore(snap *fleet.Snapshot, vm *fleet.VM, out provider.Resumed, failure error) (*fleet.VM, error) {
	var row fleet.VM
	err := s.persist(s.base, func(tx *state.Tx) error {
		if r, ok := move(tx, snap.SnapshotID, fleet.SnapshotStateReady, fleet.SnapshotStateRestoring); ok {
			why := fleet.Reason{Actor: fleet.ActorLifecycle, Rule: fleet.RuleSettled}
			r.LastError = ""
			typ := fleet.EventSnapshotRestored
			if failure != nil {
				r.LastError, typ = message(failure), fleet.EventSnapshotRestoreFailed
			}
			if useless(failure) {
				r.State = fleet.SnapshotStateError
			}
			tx.Emit(event(&r, typ, why, map[string]any{"kind": r.Kind}))
			if err := tx.PutSnapshot(r); err != nil {
				return err
			}
		}
		now, ok := tx.VMs().GetUID(vm.UID)
		if !ok {
			return fleet.Errorf(fleet.CodeConflict, "environment %s ended meanwhile", vm.ID)
		}
		row = *now
		if failure == nil {
			row.Certificate = out.Certificate
			return tx.PutVM(row)
		}
		return nil
	})
	return &row, err
}
