package snapshots

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/quota"
	"github.com/fusevm/fuse/internal/snapshots/decide"
	"github.com/fusevm/fuse/internal/state"
)

// Bounds of what a caller says of a snapshot.
const (
	maxComment  = 4096
	maxMetadata = 64
	maxValue    = 4096
	maxExports  = 16
	// MaxRetention is the longest time that a snapshot can be kept for.
	MaxRetention = 10 * 365 * 24 * time.Hour
)

// TakeRequest is a snapshot to take (seed: SnapshotOptions).
type TakeRequest struct {
	VMID, Actor string
	Comment     string
	Mode        fleet.SnapshotMode // empty: manual
	Retention   time.Duration      // zero: the fleet's
	Metadata    map[string]string
	Exports     []fleet.SnapshotExport
	// LayerKey makes it a layer, which is filed under TenantID, the caller's own
	// scope.
	LayerKey, TenantID string
	Live               bool
	Progress           func(provider.SnapshotProgress) // until Take returns; may be nil

	ephemeral bool // for forks
}

func (r *TakeRequest) check() error {
	r.Mode = cmp.Or(r.Mode, fleet.SnapshotModeManual)
	switch {
	case len(r.Comment) > maxComment:
		return fleet.Invalid("comment", fmt.Sprintf("%d bytes", maxComment), "say it shorter", "is %d bytes", len(r.Comment))
	case len(r.Mode) > 63 || !fleet.ValidLabel(string(r.Mode)):
		return fleet.Invalid("mode", "a label of 63 characters; manual, auto and build are known", "leave it out for manual", "%.80q is not allowed", r.Mode)
	case r.Retention < 0 || r.Retention > MaxRetention:
		return fleet.Invalid("retention_seconds", fmt.Sprintf("0 to %d", int64(MaxRetention/time.Second)), "leave it out for the fleet's", "is %d", int64(r.Retention/time.Second))
	case len(r.Metadata) > maxMetadata:
		return fleet.Invalid("metadata", fmt.Sprintf("%d entries", maxMetadata), "send fewer", "has %d entries", len(r.Metadata))
	case len(r.Exports) > maxExports:
		return fleet.Invalid("exports", fmt.Sprintf("%d exports", maxExports), "ask for fewer", "has %d", len(r.Exports))
	case len(r.LayerKey) > 256:
		return fleet.Invalid("layer_key", "256 bytes", "use a digest", "is %d bytes", len(r.LayerKey))
	}
	for k, v := range r.Metadata {
		if k == "" || len(k) > 256 || len(v) > maxValue {
			return fleet.Invalid("metadata", fmt.Sprintf("names of 1 to 256 bytes, values of %d", maxValue), "shorten it", "has an entry %.40q of %d bytes", k, len(v))
		}
		if k == "comment" {
			return fleet.Invalid("metadata", "another name", "send it as comment", "has the name comment, which is the server's own")
		}
	}
	return nil
}

// taker takes snapshots.
type taker struct{ *core }

// Take captures a running environment, which runs on whatever comes of it. It
// returns once the snapshot is ready; when ctx ends first the work goes on. A
// snapshot that could not be taken leaves no record once its host has confirmed
// that nothing is left.
func (s *taker) Take(ctx context.Context, req TakeRequest) (*fleet.Snapshot, error) {
	if err := req.check(); err != nil {
		return nil, err
	}
	if err := s.cfg.Admit(ctx, req.Actor, "snapshot", map[string]string{"id": req.VMID}); err != nil {
		return nil, err
	}
	began := time.Now()
	tell := &progress{fn: req.Progress}
	defer tell.detach()
	snap, err := run(ctx, s.core, "the snapshot of "+req.VMID, func(ctx context.Context) (*fleet.Snapshot, error) {
		return s.take(ctx, &req, tell)
	})
	s.cfg.Done("snapshot", time.Since(began), err)
	return snap, err
}

func (s *taker) take(ctx context.Context, req *TakeRequest, tell *progress) (*fleet.Snapshot, error) {
	unlock, err := s.cfg.Locks.Take(ctx, req.VMID)
	if err != nil {
		return nil, fit(err, "taking the snapshot")
	}
	defer unlock()
	snap, vm, err := s.claimTake(ctx, req)
	if err != nil {
		return nil, err
	}
	defer s.hold(snap.SnapshotID)()
	log := s.log.With(slog.String("snapshot_id", snap.SnapshotID), slog.String("vm_id", vm.ID), slog.String("host_id", vm.HostID))
	log.Info("snapshot claimed", slog.Bool("live", req.Live))
	var written fleet.Artifact
	err = s.guarded(snap.SnapshotID, func() error {
		if err := failpoint.Hit("snapshots.take.claimed"); err != nil {
			return err
		}
		written, err = s.capture(ctx, vm, snap, req, tell)
		if err != nil {
			return err
		}
		if err := failpoint.Hit("snapshots.take.written"); err != nil {
			return err
		}
		ready, err := s.settleTake(ctx, snap.SnapshotID, written)
		if err == nil {
			snap = ready
		}
		return err
	})
	if err != nil {
		err = fit(err, "the snapshot of "+vm.ID)
		log.Warn("snapshot not taken", slog.Any("error", err))
		if s.base.Err() == nil {
			s.abandon(snap, err)
		}
		return nil, err
	}
	log.Info("snapshot ready", slog.String("kind", string(snap.Kind)), slog.Int64("bytes", snap.SizeBytes), slog.Duration("stop", snap.Timings.Stop))
	return snap, nil
}

// claimTake is the reservation: one transaction that finds the environment,
// charges the quotas and writes the record, before the host hears of it.
func (s *taker) claimTake(ctx context.Context, req *TakeRequest) (*fleet.Snapshot, *fleet.VM, error) {
	meta, err := metadata(req.Metadata, req.Comment)
	if err != nil {
		return nil, nil, err
	}
	asker, _ := auth.From(ctx)
	var snap fleet.Snapshot
	var vm *fleet.VM
	commit, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		var err error
		if vm, err = capturable(&tx.ReadTx, req.VMID, "take a snapshot of", auth.Visible(ctx)); err != nil {
			return err
		}
		capability := fleet.CapSnapshotDisk
		if req.Live {
			capability = fleet.CapSnapshotLive
		}
		if err := errors.Join(able(&tx.ReadTx, vm.HostID, capability, "take such snapshots"), notDraining(&tx.ReadTx, vm.HostID)); err != nil {
			return err
		}
		host, _ := tx.Hosts().Get(vm.HostID)
		snap = fleet.Snapshot{
			SnapshotID: newID(), VMID: vm.ID, UID: vm.UID, Owner: vm.Owner, KeyID: asker.KeyID, TaskID: vm.TaskID, HostID: vm.HostID,
			TenantID: cmp.Or(vm.TaskID, vm.ID), Mode: req.Mode, LayerKey: req.LayerKey, Arch: fleet.NormalizeArch(cmp.Or(host.Capacity.Arch, fleet.ArchAMD64)),
			Kind: kind(req.Live), State: fleet.SnapshotStateCreating, RetentionUntil: until(tx.Now(), req.Retention), Metadata: meta,
			Exports: exports(tx.Now(), req.Exports), Ephemeral: req.ephemeral, CreatedAt: tx.Now(),
		}
		if req.LayerKey != "" {
			snap.TenantID = req.TenantID
		}
		if !req.ephemeral { // it goes with the forks, and must not keep another one until then
			seed, _ := tx.Snapshots().Get(vm.Spec.SeedSnapshotID)
			snap.ParentSnapshotID = decide.Parent(tx.Snapshots().ByVM(vm.ID), vm, seed)
		}
		if err := s.charge(tx, &snap); err != nil {
			return err
		}
		tx.Emit(event(&snap, fleet.EventSnapshotCreating, fleet.Reason{Actor: req.Actor, Rule: fleet.RuleRequested}, map[string]any{"live": req.Live, "mode": snap.Mode}))
		return tx.PutSnapshot(snap)
	})
	if err != nil {
		return nil, nil, err
	}
	snap.Revision = commit.Revision
	return &snap, vm, nil
}

func kind(live bool) fleet.SnapshotKind {
	if live {
		return fleet.SnapshotKindLive
	}
	return fleet.SnapshotKindDisk
}

func exports(now time.Time, asked []fleet.SnapshotExport) []fleet.SnapshotExport {
	var out []fleet.SnapshotExport
	for _, e := range asked {
		e.Status = cmp.Or(e.Status, fleet.SnapshotExportPending)
		e.RequestedAt, e.UpdatedAt = now, now
		out = append(out, e)
	}
	return out
}

// charge refuses a snapshot for which its tenant, owner or key has no room. It
// has to be asked in the Update that writes the record.
func (s *taker) charge(tx *state.Tx, snap *fleet.Snapshot) error {
	if snap.Mode == fleet.SnapshotModeBuild {
		return nil
	}
	if err := s.cfg.Limits.Admit(snap.TenantID, decide.UsageOf(tx.Snapshots().All(), snap.TenantID, snap.SnapshotID)); err != nil {
		return err
	}
	if s.cfg.Quotas == nil {
		return nil
	}
	return s.cfg.Quotas.Charge(&tx.ReadTx, quota.Payer{Owner: snap.Owner, KeyID: snap.KeyID}, quota.Amounts{QuotaSnapshots: 1})
}

func (s *taker) capture(ctx context.Context, vm *fleet.VM, snap *fleet.Snapshot, req *TakeRequest, tell *progress) (fleet.Artifact, error) {
	env, err := s.checkpointer(vm)
	if err != nil {
		return fleet.Artifact{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	emit, end := s.noted(snap.SnapshotID, tell)
	defer end()
	return env.TakeSnapshot(ctx, provider.TakeRequest{SnapshotID: snap.SnapshotID, Live: req.Live, Volatile: req.ephemeral && req.Live, Progress: emit})
}

// settleTake makes the snapshot ready as what was written, if it may be kept.
func (s *taker) settleTake(ctx context.Context, id string, a fleet.Artifact) (*fleet.Snapshot, error) {
	err := s.persist(ctx, func(tx *state.Tx) error {
		snap, ok := move(tx, id, fleet.SnapshotStateReady, fleet.SnapshotStateCreating)
		if !ok {
			return fleet.Errorf(fleet.CodeConflict, "snapshot %s was ended while it was being taken", id)
		}
		snap.Kind, snap.Digest, snap.Files, snap.SizeBytes = cmp.Or(a.Kind, fleet.SnapshotKindDisk), a.Digest, a.Files, a.SizeBytes
		snap.Machine, snap.Timings = a.Machine, a.Timings
		if err := s.keep(tx, &snap); err != nil {
			return err
		}
		tx.Emit(event(&snap, fleet.EventSnapshotCreated, fleet.Reason{Actor: fleet.ActorLifecycle, Rule: fleet.RuleSettled}, map[string]any{
			"kind": snap.Kind, "size_bytes": snap.SizeBytes, "digest": snap.Digest, "freeze_ms": ms(snap.Timings.Freeze), "stop_ms": ms(snap.Timings.Stop),
		}))
		return tx.PutSnapshot(snap)
	})
	if err != nil {
		return nil, err
	}
	return s.get(id, everybody)
}

func everybody(string) bool { return true }

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// keep is charge for what was not known before: how large it is.
func (s *taker) keep(tx *state.Tx, snap *fleet.Snapshot) error {
	if snap.Mode == fleet.SnapshotModeBuild {
		return nil
	}
	others := decide.UsageOf(tx.Snapshots().All(), snap.TenantID, snap.SnapshotID)
	if err := s.cfg.Limits.Keep(snap.TenantID, others, snap.SizeBytes); err != nil {
		return err
	}
	if s.cfg.Quotas == nil {
		return nil
	}
	return s.cfg.Quotas.Charge(&tx.ReadTx, quota.Payer{Owner: snap.Owner, KeyID: snap.KeyID}, quota.Amounts{QuotaSnapshotMB: megabytes(snap.SizeBytes)})
}

// abandon takes back a snapshot that could not be taken: the bytes, then the
// record. What its host does not confirm stays as an error, and its collection
// goes on.
func (s *taker) abandon(snap *fleet.Snapshot, cause error) {
	failed := fleet.Reason{Actor: fleet.ActorLifecycle, Rule: fleet.RuleSettled, Evidence: message(cause)}
	clean := s.discardBytes(s.base, snap)
	err := s.persist(s.base, func(tx *state.Tx) error {
		row, ok := move(tx, snap.SnapshotID, fleet.SnapshotStateError, fleet.SnapshotStateCreating)
		if !ok {
			return nil
		}
		row.Discard, row.LastError = true, message(cause)
		tx.Emit(event(&row, fleet.EventSnapshotFailed, failed, nil))
		if clean == nil {
			return tx.DeleteSnapshot(row.SnapshotID)
		}
		return tx.PutSnapshot(row)
	})
	if err != nil {
		s.log.Warn("failed snapshot not taken back yet", slog.String("snapshot_id", snap.SnapshotID), slog.Any("error", err))
	}
}

// progress passes on how far work is, until the caller leaves.
type progress struct {
	mu sync.Mutex
	fn func(provider.SnapshotProgress) // guarded by mu
}

func (p *progress) emit(u provider.SnapshotProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fn != nil {
		p.fn(u)
	}
}

func (p *progress) detach() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fn = nil
}
