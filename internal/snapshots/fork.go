package snapshots

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/admission"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/snapshots/decide"
	"github.com/fusevm/fuse/internal/state"
)

// MaxForks is the most environments of one fork; forksAtOnce of them are made
// at a time.
const (
	MaxForks    = 64
	forksAtOnce = 8
)

// ForkRequest are forks to make of an environment (seed: ForkOptions).
type ForkRequest struct {
	VMID, Actor string
	// Comment is of the snapshot that is taken for them.
	Comment string
	// ReuseSnapshotID is a ready snapshot of the environment; empty: one is taken,
	// which goes with the last of the forks.
	ReuseSnapshotID string
	Live            bool
	Count           int // 1 to MaxForks; zero is 1
	// Idempotency is of the request; it counts for a single fork.
	Idempotency *state.Idempotency
	Progress    func(provider.SnapshotProgress)
}

// Forks are what came of a fork. Failures are of those that could not be made,
// of which nothing is left.
type Forks struct {
	SnapshotID   string
	Environments []*fleet.VM
	Failures     []error
}

// forker makes environments of others.
type forker struct {
	*core
	takes   *taker
	removes *remover
}

// Fork makes environments that go on from where another one is: from its disk,
// or from its memory too. Each has credentials, an identity and a place of its
// own, and is admitted like any create; the source's host is never overcommitted.
// It fails as a whole only when none could be made.
func (s *forker) Fork(ctx context.Context, req ForkRequest) (Forks, error) {
	if req.Count == 0 {
		req.Count = 1
	}
	if req.Count < 1 || req.Count > MaxForks {
		return Forks{}, fleet.Invalid("count", fmt.Sprintf("1 to %d", MaxForks), "fork more often", "is %d", req.Count)
	}
	if len(req.Comment) > maxComment {
		return Forks{}, fleet.Invalid("comment", fmt.Sprintf("%d bytes", maxComment), "say it shorter", "is %d bytes", len(req.Comment))
	}
	if err := s.cfg.Admit(ctx, req.Actor, "fork", map[string]string{"id": req.VMID}); err != nil {
		return Forks{}, err
	}
	began := time.Now()
	tell := &progress{fn: req.Progress}
	defer tell.detach()
	req.Progress = tell.emit
	out, err := detached(ctx, s.core, "the fork of "+req.VMID, func(ctx context.Context) (Forks, error) { return s.fork(ctx, &req) })
	s.cfg.Done("fork", time.Since(began), err)
	return out, err
}

func (s *forker) fork(ctx context.Context, req *ForkRequest) (Forks, error) {
	src, boot, err := s.source(ctx, req)
	if err != nil {
		return Forks{}, err
	}
	seedID := req.ReuseSnapshotID
	if seedID == "" {
		taken, err := s.takes.Take(ctx, TakeRequest{
			VMID: req.VMID, Actor: req.Actor, Comment: req.Comment, Mode: fleet.SnapshotModeAuto, Live: req.Live, Progress: req.Progress, ephemeral: true,
		})
		if err != nil {
			return Forks{}, err
		}
		seedID = taken.SnapshotID
		if req.Live && taken.Kind != fleet.SnapshotKindLive {
			err := fleet.Errorf(fleet.CodeUnimplemented, "the host of environment %s wrote a disk snapshot, which holds no memory to fork from: %w", src.ID, fleet.ErrSnapshotUnsupported)
			return Forks{}, errors.Join(err, s.letGo(seedID))
		}
	}
	release := s.hold(seedID)
	note, end := s.doing.Note(seedID)
	tell := req.Progress
	req.Progress = func(u provider.SnapshotProgress) {
		if u.Total > 0 { // the reading of the seed, which all of them wait for
			note(u)
		}
		tell(u)
	}
	out := s.forkAll(ctx, req, src, boot, seedID)
	end()
	release()
	if len(out.Environments) > 0 {
		s.tellForked(src, out, req)
		return out, nil
	}
	if req.ReuseSnapshotID == "" {
		if err := s.letGo(seedID); err != nil {
			s.log.Warn("seed of a failed fork not deleted yet", slog.String("snapshot_id", seedID), slog.Any("error", err))
		}
	}
	return Forks{}, out.Failures[0]
}

// source reads what is to be forked and refuses what cannot be, before anything
// is written.
func (s *forker) source(ctx context.Context, req *ForkRequest) (src fleet.VM, boot fleet.BootOptions, err error) {
	asker, _ := auth.From(ctx)
	err = s.cfg.Store.View(func(tx *state.ReadTx) error {
		vm, err := forkable(ctx, tx, req)
		if err != nil {
			return err
		}
		src = *vm
		if err := able(tx, vm.HostID, fleet.CapFork, "fork"); err != nil {
			return err
		}
		if s.cfg.Admission == nil {
			return nil
		}
		// Run dry, so that no snapshot is taken of what has no room for its forks.
		_, err = s.cfg.Admission.Prepare(admission.Request{Kind: admission.Fork, Spec: forkSpec(&src, "pending", req.Live), Owner: src.Owner, KeyID: asker.KeyID}).Admit(tx)
		return err
	})
	if err != nil {
		return src, boot, err
	}
	boot, err = s.inherited(&src)
	return src, boot, err
}

func forkable(ctx context.Context, tx *state.ReadTx, req *ForkRequest) (*fleet.VM, error) {
	sees := auth.Visible(ctx)
	if req.ReuseSnapshotID == "" {
		return capturable(tx, req.VMID, "fork", sees)
	}
	vm, ok := tx.VMs().Get(req.VMID)
	if !ok || !sees(vm.Owner) {
		return nil, vmNotFound(req.VMID)
	}
	if vm.State != fleet.VMStateRunning {
		return nil, fleet.Errorf(fleet.CodeConflict, "cannot fork environment %s while it is %s: %w", vm.ID, vm.State, fleet.ErrVMNotRunning).
			With(fleet.DetailScope, vm.ID).With(fleet.DetailUsage, "state "+string(vm.State))
	}
	if vm.Spec.HasGPU() {
		return nil, fleet.Errorf(fleet.CodeConflict, "cannot fork environment %s: %w", vm.ID, fleet.ErrGPUUnsupported).With(fleet.DetailScope, vm.ID)
	}
	snap, ok := tx.Snapshots().Get(req.ReuseSnapshotID)
	if !ok || !sees(snap.Owner) || snap.VMID != vm.ID || snap.UID != vm.UID {
		return nil, notFound(req.ReuseSnapshotID)
	}
	return vm, decide.Seedable(snap, req.Live)
}

// inherited is what a fork takes of how its source was made: its secrets, to be
// sealed anew, its manifest, ports and probe. What was run and written at the
// beginning has been, and is in the snapshot.
func (s *forker) inherited(src *fleet.VM) (boot fleet.BootOptions, err error) {
	if len(src.BootSealed) == 0 {
		return boot, nil
	}
	doc, err := s.cfg.Opener.Open(s.cfg.BootKind, src.UID, src.BootSealed)
	if err != nil {
		return boot, fleet.Wrap(fleet.CodeInternal, err, "the secrets of "+src.ID+" cannot be read with this server's key")
	}
	if json.Unmarshal(doc, &boot) != nil {
		return boot, fleet.Errorf(fleet.CodeInternal, "the boot options of %s cannot be read", src.ID) // the cause may quote them
	}
	boot.StartupScript, boot.StartupScriptTimeout, boot.Files, boot.TunnelConfig = "", 0, nil, nil
	boot.Expose = slices.Clone(boot.Expose)
	for i := range boot.Expose {
		boot.Expose[i].HostPort = 0 // the source has that one
	}
	return boot, nil
}

// forkSpec is the machine of a fork: its source's, bound to the host that has
// the bytes.
func forkSpec(src *fleet.VM, seedID string, live bool) fleet.Spec {
	spec := src.Spec
	spec.Name, spec.SeedSnapshotID, spec.ResumeSeed, spec.PinnedHostID = "", seedID, live, src.HostID
	spec.HostID = ""
	spec.Ancestors = append(slices.Clone(src.Spec.Ancestors), src.ID)
	return spec
}

func (s *forker) forkAll(ctx context.Context, req *ForkRequest, src fleet.VM, boot fleet.BootOptions, seedID string) Forks {
	out := Forks{SnapshotID: seedID}
	vms, errs := make([]*fleet.VM, req.Count), make([]error, req.Count)
	var wg sync.WaitGroup
	slots := make(chan struct{}, forksAtOnce)
	for i := range req.Count {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			errs[i] = s.guarded(seedID, func() (err error) {
				if err = failpoint.Hit("snapshots.fork.child"); err != nil {
					return err
				}
				vms[i], err = s.forkOne(ctx, req, src, boot, seedID)
				return err
			})
		})
	}
	wg.Wait()
	for i := range req.Count {
		if errs[i] != nil {
			out.Failures = append(out.Failures, fit(errs[i], "the fork of "+src.ID))
		} else {
			out.Environments = append(out.Environments, vms[i])
		}
	}
	return out
}

func (s *forker) forkOne(ctx context.Context, req *ForkRequest, src fleet.VM, boot fleet.BootOptions, seedID string) (*fleet.VM, error) {
	child := Child{
		TaskID: "fork-" + randomHex(), Owner: src.Owner, Actor: req.Actor, Spec: forkSpec(&src, seedID, req.Live), Boot: boot,
		Live: req.Live, Progress: req.Progress,
	}
	child.Ancestors, child.Spec.Ancestors = child.Spec.Ancestors, nil
	if req.Count == 1 {
		child.Idempotency = req.Idempotency
	}
	return s.cfg.Create(ctx, child)
}

// tellForked says of the source that there are copies of it.
func (s *forker) tellForked(src fleet.VM, out Forks, req *ForkRequest) {
	why := fleet.Reason{Actor: req.Actor, Rule: fleet.RuleRequested}
	err := s.persist(s.base, func(tx *state.Tx) error {
		for _, vm := range out.Environments {
			raw, err := json.Marshal(map[string]any{"fork": vm.ID, "snapshot_id": out.SnapshotID, "live": req.Live})
			if err != nil {
				return fmt.Errorf("encode: %w", err)
			}
			tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: src.ID, UID: src.UID, Type: fleet.EventVMForked, Reason: &why, Payload: raw})
		}
		return nil
	})
	if err != nil {
		s.log.Warn("fork not told of", slog.String("vm_id", src.ID), slog.Any("error", err))
	}
}

// letGo deletes a seed that nothing was made from.
func (s *forker) letGo(id string) error {
	return s.removes.remove(s.base, removal{
		id: id, reason: fleet.Reason{Actor: fleet.ActorLifecycle, Rule: fleet.RuleSettled, Evidence: "nothing was made from it"}, sees: everybody,
		done: fleet.EventSnapshotDeleted, failed: fleet.EventSnapshotDeleteFailed,
	})
}

func randomHex() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}
