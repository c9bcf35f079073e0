package snaprpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/admit"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/raise"
	"github.com/fusevm/fuse/internal/hostd/snapstore"
	"github.com/fusevm/fuse/internal/hostd/thaw"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/hostwire/hostwirev1/hostwirev1connect"
)

// Limits in time of the operations.
const (
	takeLimit    = 10 * time.Minute
	restoreLimit = 5 * time.Minute
	pauseLimit   = 10 * time.Minute
	undoLimit    = time.Minute
	tellEvery    = 250 * time.Millisecond // of progress
)

// Verbs of the operations.
const (
	verbTake    = "snapshot"
	verbRestore = "restore"
	verbPause   = "pause"
	verbResume  = "resume"
)

// Service serves captures. Driver may be one that makes none: then it answers
// that it cannot.
type Service struct {
	Host   Host
	Driver driver.Driver
	Store  *snapstore.Store // nil where the driver makes none
	// RAM bounds the memory that captures keep loaded for forks, in bytes; zero is
	// 1 GiB, less keeps none.
	RAM    int64
	Memory *admit.Gate // nil admits everything
	Log    *slog.Logger

	mu     sync.Mutex
	taking map[string]*taking // by snapshot id; what is no capture by vmKey
}

// Handler serves the calls.
func (s *Service) Handler(opts ...connect.HandlerOption) (string, http.Handler) {
	return hostwirev1connect.NewSnapshotsHandler(handler{s}, opts...)
}

// snapper is the driver's part, or the refusal of a driver that has none.
func (s *Service) snapper() (driver.Snapshotter, error) {
	d, ok := s.Driver.(driver.Snapshotter)
	if !ok || s.Store == nil {
		return nil, fleet.Errorf(fleet.CodeUnimplemented, "%w: the driver of this host makes no snapshots", fleet.ErrSnapshotUnsupported)
	}
	return d, nil
}

// Adopt finishes what an earlier process left: captures that were not written
// to their end are discarded, and deletions are finished.
func (s *Service) Adopt(ctx context.Context) {
	d, err := s.snapper()
	if err != nil {
		return
	}
	for _, r := range s.Store.In(snapstore.Writing, snapstore.Deleting) {
		if err := s.discard(ctx, d, r); err != nil {
			s.Log.Error("unfinished snapshot not discarded", "snapshot_id", r.ID, "error", err)
			continue
		}
		s.Log.Warn("unfinished snapshot discarded", "snapshot_id", r.ID, "state", r.State)
	}
}

// Artifacts are all captures there are, for the sweep.
func (s *Service) Artifacts() []driver.Artifact {
	if s.Store == nil {
		return nil
	}
	var out []driver.Artifact
	for _, r := range s.Store.In(snapstore.Writing, snapstore.Ready, snapstore.Deleting) {
		out = append(out, s.Store.Artifact(r.ID))
	}
	return out
}

// Purge deletes the captures of a fleet whose control plane is gone.
func (s *Service) Purge(ctx context.Context, fleetID string) error {
	d, err := s.snapper()
	if err != nil {
		return nil //nolint:nilerr // there are none
	}
	var errs []error
	for _, r := range s.Store.In(snapstore.Writing, snapstore.Ready, snapstore.Deleting) {
		if r.FleetID != fleetID {
			continue
		}
		if r, _, err = s.Store.Condemn(fleetID, r.ID); err == nil {
			err = s.clear(ctx, d, r)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Retry tries again to delete what could not be deleted before.
func (s *Service) Retry(ctx context.Context) {
	d, err := s.snapper()
	if err != nil {
		return
	}
	for _, r := range s.Store.In(snapstore.Deleting) {
		if t := s.making(r.ID); t != nil {
			t.cancel(errDeleted) // it discards what it has written itself
			continue
		}
		if err := s.discard(ctx, d, r); err != nil {
			s.Log.Error("snapshot not deleted", "snapshot_id", r.ID, "error", err)
		}
	}
	s.Store.Forget(time.Now())
	s.trim(ctx)
	s.note(ctx)
}

func (s *Service) discard(ctx context.Context, d driver.Snapshotter, r snapstore.Record) error {
	if err := d.Discard(ctx, s.Store.Artifact(r.ID)); err != nil {
		return err
	}
	if err := failpoint.Hit("hostd.snapshot.discarded"); err != nil {
		return err
	}
	defer s.note(ctx)
	return s.Store.Gone(r)
}

// Take captures a running VM. report is told how far it is.
func (s *Service) Take(ctx context.Context, m *hostwirev1.TakeSnapshotRequest, report func(*hostwirev1.SnapshotProgress) error) (snapstore.Record, error) {
	d, err := s.snapper()
	if err != nil {
		return snapstore.Record{}, err
	}
	fleetID, id := m.GetFence().GetFleetId(), m.GetSnapshotId()
	end := s.telling(ctx, id, report)
	_, err = s.Host.Once(ctx, m.GetFence(), m.GetRef(), Op{Verb: verbTake, Limit: takeLimit, Do: func(ctx context.Context, vm VM) (Outcome, error) {
		r, err := s.take(ctx, d, vm, m)
		if err != nil || r.Info == nil {
			return Outcome{}, err
		}
		return Outcome{Bytes: r.Info.SizeBytes}, nil
	}})
	if terr := end(); err == nil && terr != nil && ctx.Err() != nil {
		err = terr
	}
	if err != nil {
		return snapstore.Record{}, err
	}
	return s.Store.Get(fleetID, id)
}

// take captures a VM that it has to itself.
func (s *Service) take(ctx context.Context, d driver.Snapshotter, vm VM, m *hostwirev1.TakeSnapshotRequest) (snapstore.Record, error) {
	r, err := s.Store.Begin(snapstore.Record{
		ID: m.GetSnapshotId(), FleetID: m.GetFence().GetFleetId(), OpID: m.GetRef().GetOperationId(), VMID: vm.ID, UID: vm.UID, Live: m.GetLive(),
	})
	if errors.Is(err, snapstore.ErrSame) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := &taking{cancel: cancel, done: make(chan struct{}), began: time.Now()}
	leave := s.enter(r.ID, t)
	defer func() {
		leave()
		close(t.done)
	}()
	// A deletion that came before it could be told to this finds it here.
	if now, gerr := s.Store.Get(r.FleetID, r.ID); gerr != nil || now.State == snapstore.Deleting {
		cancel(errDeleted)
	}
	if err = errors.Join(context.Cause(ctx), failpoint.Hit("hostd.snapshot.begun")); err == nil {
		r, err = s.write(ctx, d, vm, r, m, t)
	}
	if err == nil {
		s.Log.Info("snapshot taken", "snapshot_id", r.ID, "vm_id", vm.ID, "uid", vm.UID, "kind", r.Info.Kind, "bytes", r.Info.SizeBytes,
			"stop_ms", r.Info.Timings.Stop.Milliseconds(), "freeze_ms", r.Info.Timings.Freeze.Milliseconds())
		s.trim(ctx)
		return r, failpoint.Hit("hostd.snapshot.answer")
	}
	undo, done := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer done()
	if uerr := s.discard(undo, d, r); uerr != nil {
		_, _, cerr := s.Store.Condemn(r.FleetID, r.ID) // Retry goes on
		s.Log.Error("failed snapshot not discarded", "snapshot_id", r.ID, "error", errors.Join(uerr, cerr))
	}
	if cause := context.Cause(ctx); cause != nil && errors.As(cause, new(*fleet.Error)) {
		err = cause
	}
	return r, raise.Explain(s.Store, r.ID, err)
}

func (s *Service) write(ctx context.Context, d driver.Snapshotter, vm VM, r snapstore.Record, m *hostwirev1.TakeSnapshotRequest, t *taking) (snapstore.Record, error) {
	if m.GetLive() {
		leave, err := s.Memory.Capture(ctx, vm.VM)
		if err != nil {
			return r, err
		}
		defer leave()
		defer s.note(ctx) // before what was promised is given back
	}
	info, err := d.Snapshot(driver.Telling(ctx, t.progress), vm.VM, driver.SnapshotRequest{
		To: s.Store.Artifact(r.ID), Live: m.GetLive(), Volatile: m.GetVolatile(), Step: t.step,
	})
	vm.lost(err)
	if err != nil {
		return r, err
	}
	if err := failpoint.Hit("hostd.snapshot.written"); err != nil {
		return r, err
	}
	done, err := s.Store.Written(r.ID, info)
	if err != nil {
		return r, err
	}
	return done, nil
}

var errDeleted = fleet.Errorf(fleet.CodeConflict, "%w: the snapshot was deleted while it was being taken", fleet.ErrSnapshotInvalidState)

// Delete removes a capture, and ends its making.
func (s *Service) Delete(ctx context.Context, f *hostwirev1.Fence, id string) error {
	d, err := s.snapper()
	if err != nil {
		return err
	}
	if err := s.Host.Fenced(f); err != nil {
		return err
	}
	r, found, err := s.Store.Condemn(f.GetFleetId(), id)
	if err != nil || !found {
		return err
	}
	s.Log.Info("snapshot is deleted", "snapshot_id", id, "fleet_id", f.GetFleetId())
	if err := failpoint.Hit("hostd.snapshot.condemned"); err != nil {
		return err
	}
	return s.clear(ctx, d, r)
}

// clear removes a condemned capture once nobody writes it any more.
func (s *Service) clear(ctx context.Context, d driver.Snapshotter, r snapstore.Record) error {
	if t := s.making(r.ID); t != nil {
		t.cancel(errDeleted)
		select {
		case <-t.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if _, err := s.Store.Get(r.FleetID, r.ID); err != nil {
		return nil // the making has cleared it
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	return s.discard(ctx, d, r)
}

// Follow tells how far what is under way with a VM is, until ctx ends.
func (s *Service) Follow(ctx context.Context, f *hostwirev1.Fence, ref *hostwirev1.Ref, report func(*hostwirev1.SnapshotProgress) error) error {
	if err := s.Host.Fenced(f); err != nil {
		return err
	}
	return s.tell(ctx, vmKey(f, ref), report)
}

// Restore puts a VM back to a capture of its own. report is told how far it is.
func (s *Service) Restore(ctx context.Context, m *hostwirev1.RestoreVMRequest, report func(*hostwirev1.SnapshotProgress) error) (Outcome, error) {
	d, err := s.snapper()
	if err != nil {
		return Outcome{}, err
	}
	defer s.telling(ctx, vmKey(m.GetFence(), m.GetRef()), report)() //nolint:errcheck // whoever does not hear it may hear the answer
	return s.Host.Once(ctx, m.GetFence(), m.GetRef(), Op{Verb: verbRestore, Limit: restoreLimit, Do: func(ctx context.Context, vm VM) (Outcome, error) {
		ctx, t, leave := s.told(ctx, vmKey(m.GetFence(), m.GetRef()))
		defer leave()
		r, release, err := s.Store.Use(m.GetFence().GetFleetId(), m.GetSnapshotId(), vm.ID)
		if err != nil {
			return Outcome{}, err
		}
		defer release()
		if err := raise.Check(r, m.GetDigest(), m.GetKind() == string(fleet.SnapshotKindLive)); err != nil {
			return Outcome{}, err
		}
		if r.UID != vm.UID {
			return Outcome{}, fleet.Errorf(fleet.CodeConflict, "%w: snapshot %s was taken of another environment (%s)", fleet.ErrSnapshotInvalidState, r.ID, r.VMID).
				With(fleet.DetailRemedy, "fork it instead")
		}
		loaded, err := s.Memory.Load(ctx, s.Store.Artifact(r.ID).ID, r.Info.MemoryBytes)
		if err != nil {
			return Outcome{}, err
		}
		defer loaded()
		steps := timer{told: t.step}
		revived, err := d.Restore(ctx, vm.VM, s.Store.Artifact(r.ID), steps.step)
		if vm.lost(err) {
			return Outcome{}, unsure(err)
		}
		if err != nil {
			return Outcome{}, raise.Explain(s.Store, r.ID, err)
		}
		out, _, err := s.settle(ctx, vm, revived, fleet.ThawRestore, &steps)
		return out, err
	}})
}

// Pause sets a VM aside.
func (s *Service) Pause(ctx context.Context, f *hostwirev1.Fence, ref *hostwirev1.Ref) (Outcome, error) {
	d, err := s.snapper()
	if err != nil {
		return Outcome{}, err
	}
	return s.Host.Once(ctx, f, ref, Op{Verb: verbPause, Limit: pauseLimit, Paused: true, Do: func(ctx context.Context, vm VM) (Outcome, error) {
		if vm.Instance == nil {
			return Outcome{}, nil
		}
		ctx, t, leave := s.told(ctx, vmKey(f, ref))
		defer leave()
		leave, err := s.Memory.Capture(ctx, vm.VM)
		if err != nil {
			return Outcome{}, err
		}
		defer leave()
		info, err := d.Pause(ctx, vm.VM, t.step)
		vm.lost(err)
		if err != nil {
			return Outcome{}, raise.Full(err)
		}
		vm.Stands()
		return Outcome{Bytes: info.SizeBytes}, failpoint.Hit("hostd.pause.answer")
	}})
}

// Resume brings a VM back.
func (s *Service) Resume(ctx context.Context, f *hostwirev1.Fence, ref *hostwirev1.Ref) (Outcome, error) {
	d, err := s.snapper()
	if err != nil {
		return Outcome{}, err
	}
	return s.Host.Once(ctx, f, ref, Op{Verb: verbResume, Limit: restoreLimit, Paused: true, Do: func(ctx context.Context, vm VM) (Outcome, error) {
		if vm.Instance != nil {
			return Outcome{}, nil
		}
		asleep, err := vm.Wake()
		if err != nil {
			return Outcome{}, err
		}
		ctx, t, leave := s.told(ctx, vmKey(f, ref))
		defer leave()
		steps := timer{told: t.step}
		revived, err := d.Resume(ctx, vm.VM, steps.step)
		if vm.lost(err) {
			return Outcome{}, unsure(err)
		}
		if err != nil {
			asleep()
			return Outcome{}, raise.Full(staysPaused(err))
		}
		out, known, err := s.settle(ctx, vm, revived, fleet.ThawResume, &steps)
		if err != nil && known {
			asleep()
		}
		return out, err
	}})
}

// staysPaused gives an error of a resumption its code and its remedy.
func staysPaused(err error) error {
	var damaged *driver.DamagedError
	var differs *driver.IncompatibleError
	switch {
	case errors.As(err, &damaged):
		return fleet.Errorf(fleet.CodeConflict, "%w: what was kept of the paused environment: %s", fleet.ErrSnapshotCorrupt, damaged.Why).
			With(fleet.DetailReason, damaged.Why).With(fleet.DetailRemedy, "it stays as it is; fork the last snapshot of it, and destroy it once nothing of it is wanted")
	case errors.As(err, &differs):
		return fleet.Errorf(fleet.CodeConflict, "%w: %s", fleet.ErrSnapshotIncompatible, differs.Error()).
			With(fleet.DetailRemedy, "it stays paused; bring the host back to what it was when it was paused, and resume it again")
	}
	return err
}

// settle renews a machine that goes on, and makes that count; or goes back to
// what was before. A machine that counts and refuses to go on is ended. Where
// time ran out in between, what there is now is not known.
func (s *Service) settle(ctx context.Context, vm VM, revived driver.Revived, cause string, steps *timer) (out Outcome, known bool, err error) {
	kept := false
	keep := func(ctx context.Context) error {
		if err := revived.Keep(ctx); err != nil {
			return err
		}
		kept = true
		vm.Runs(revived.Instance)
		return failpoint.Hit("hostd." + cause + ".kept")
	}
	cert, err := s.renew(ctx, vm, revived, cause, keep, steps)
	if err == nil {
		out = Outcome{Boot: fleet.BootRecord{Steps: steps.times()}, Certificate: cert}
		if !revived.Live {
			out.Boot.Mode = fleet.BootCold
		}
		return out, true, failpoint.Hit("hostd." + cause + ".answer")
	}
	log := s.Log.With("vm_id", vm.ID, "uid", vm.UID, "cause", cause, "error", err)
	if kept {
		if ctx.Err() != nil || errors.Is(err, thaw.ErrLate) {
			log.Error("a machine that counts does not go on yet")
			vm.Unsure()
			return out, false, unsure(err)
		}
		log.Error("a machine that did not go on is ended")
		vm.Ended("thaw_failed", err.Error())
		return out, true, err
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
	defer cancel()
	uerr := revived.Undo(undo)
	log.Warn("a machine does not go on from its capture", "undo_error", uerr)
	switch {
	case uerr != nil:
		vm.Unsure()
		return out, false, unsure(errors.Join(err, fmt.Errorf("go back to what was before: %w", uerr)))
	case revived.Before != nil:
		vm.Runs(revived.Before)
	default:
		vm.Stands()
	}
	return out, true, err
}

// unsure tells a caller that what was asked may have been done, whatever the
// sentinels of its causes say.
func unsure(err error) error {
	return fleet.Wrap(fleet.CodeInternal, errors.Join(hostwire.ErrUnsure, errors.New(err.Error())), "whether the environment goes on is not known yet: its host finds out by itself").
		With(fleet.DetailStep, "thaw").With(fleet.DetailRemedy, "look at it in a minute")
}

// renew renews the guest of a machine that goes on from memory, and gives one
// that booted its files again.
func (s *Service) renew(ctx context.Context, vm VM, revived driver.Revived, cause string, keep func(context.Context) error, steps *timer) (*fleet.Certificate, error) {
	guest := revived.Instance.Guest()
	files, _ := guest.(interface {
		GiveAgain(ctx context.Context) error
	})
	agent, ok := thaw.Of(guest)
	if !revived.Live || !ok && revived.ThawKey == "" { // a simulated guest has nothing to renew
		steps.step("files")
		if files != nil {
			if err := files.GiveAgain(ctx); err != nil {
				return nil, err
			}
		}
		return nil, keep(ctx)
	}
	steps.step("thaw")
	if !ok {
		return nil, fleet.Errorf(fleet.CodeUnimplemented, "%w: the guest agent in the snapshot cannot be renewed", fleet.ErrSnapshotIncompatible)
	}
	g := revived.Guest
	req := thaw.Request{
		Key: revived.ThawKey, Cause: cause, VM: vm.VM, Keep: keep, Address: g.Address, Nameservers: g.Nameservers,
		Identity: driver.Identity{Hostname: g.Hostname, MachineID: g.MachineID, Token: g.Token, CertPEM: g.CertPEM, KeyPEM: g.KeyPEM},
	}
	if files != nil && cause == fleet.ThawRestore { // its files may be older than what it was given last
		req.Renewed = files.GiveAgain
	}
	cert, err := thaw.Do(ctx, agent, req)
	if err != nil {
		return nil, err
	}
	return &cert, nil
}
