package converge

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
)

// tell makes an event of news.
func (d *doer) tell(ctx context.Context, s reconcile.Step, row *fleet.VM) error {
	why := s.Reason()
	ev := fleet.Event{EntityType: fleet.EntityVM, EntityID: s.VMID, UID: s.UID, Reason: &why}
	payload := map[string]any{}
	switch s.Kind {
	case reconcile.KindStuckSuspected:
		ev.EntityType, ev.EntityID, ev.Type = fleet.EntityTask, row.TaskID, fleet.EventTaskStuckSuspected
		payload["limit_seconds"] = int64(s.Limit.Seconds())
	case reconcile.KindIdleSuspected:
		ev.Type = fleet.EventVMIdleSuspected
		payload["limit_seconds"] = int64(s.Limit.Seconds())
	case reconcile.KindHealth:
		ev.Type = fleet.EventVMHealthChanged
		payload["from"], payload["to"] = s.Was, s.Is
	case reconcile.KindBudget:
		d.log.Warn("budget of destructions spent, the rest waits", slog.String("pass", string(s.Pass)), slog.String("host_id", s.HostID), slog.String("evidence", s.Evidence))
		ev.EntityType, ev.EntityID, ev.Type = fleet.EntityHost, s.HostID, fleet.EventReconcileBudget
		payload["pass"] = s.Pass
	}
	var err error
	if ev.Payload, err = json.Marshal(payload); err != nil {
		return err
	}
	_, err = d.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		tx.Emit(ev)
		return nil
	})
	return err
}

// collect has a snapshot or an artifact deleted, which tells how that went. Where
// nobody can delete it, that is told here.
func (d *doer) collect(ctx context.Context, s reconcile.Step) error {
	if d.cfg.Collector != nil {
		return d.cfg.Collector.Collect(ctx, s.Snapshot, s.RowRevision, s.Reason())
	}
	typ, why := fleet.EventSnapshotGCFailed, s.Reason()
	if s.Kind == reconcile.KindArtifactGC {
		typ = fleet.EventArtifactGCFailed
	}
	err := fleet.Errorf(fleet.CodeUnimplemented, "this server cannot delete snapshots")
	ev := fleet.Event{EntityType: fleet.EntitySnapshot, EntityID: s.Snapshot, VMID: s.VMID, HostID: s.HostID, Reason: &why, Type: typ, Error: err.Error()}
	if err := d.cfg.Store.View(func(tx *state.ReadTx) error {
		if row, ok := tx.Snapshots().Get(s.Snapshot); ok {
			ev.Owner = row.Owner
		}
		return nil
	}); err != nil {
		return err
	}
	return errors.Join(err, d.record(ctx, ev))
}
