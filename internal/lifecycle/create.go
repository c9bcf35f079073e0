package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/tracing"
	"github.com/fusevm/fuse/internal/uid"
)

func newULID() string { return uid.New() }

// creator takes creates through their steps.
type creator struct {
	*core
	steps      []step
	slots      map[string]chan struct{} // by host, one token per create that acts there; guarded by core.mu
	unfinished int                      // claimed and not finished; guarded by core.mu
}

// Create makes an environment and returns when it runs and its startup script
// has ended. When ctx ends first the work goes on and the error names the
// environment. A create that fails leaves nothing but its record.
func (s *Service) Create(ctx context.Context, req CreateRequest) (*fleet.VM, error) {
	b, j, err := s.creator.start(ctx, req, false)
	if err != nil {
		return nil, err
	}
	defer b.progress.detach()
	select {
	case <-j.done:
		return j.vm, j.err
	case <-ctx.Done():
		return nil, fleet.Wrap(fleet.CodeDeadlineExceeded, ctx.Err(), fmt.Sprintf("environment %s is still being created", b.id)).
			With(fleet.DetailScope, b.id).With(fleet.DetailRemedy, "look at it later, or create with Prefer: respond-async")
	}
}

// CreateAsync is Create that returns as soon as the claim is durable; the row
// is still provisioning. Failures after that show in events and history.
func (s *Service) CreateAsync(ctx context.Context, req CreateRequest) (*fleet.VM, error) {
	req.Progress = nil
	b, _, err := s.creator.start(ctx, req, true)
	if err != nil {
		return nil, err
	}
	return b.claimed, nil
}

// Await waits for the create or drain in flight on a life and returns its
// result; ok is false when there is none.
func (s *Service) Await(ctx context.Context, uid string) (vm *fleet.VM, ok bool, err error) {
	s.core.mu.Lock()
	j := s.core.jobs[uid]
	s.core.mu.Unlock()
	if j == nil {
		return nil, false, nil
	}
	select {
	case <-j.done:
		return j.vm, true, j.err
	case <-ctx.Done():
		return nil, true, fleet.Wrap(fleet.CodeDeadlineExceeded, ctx.Err(), "the environment is still being worked on")
	}
}

// start validates, claims and hands the rest to a goroutine of the
// service.
func (s *creator) start(ctx context.Context, req CreateRequest, async bool) (*build, *job, error) {
	if req.Actor == "" {
		req.Actor = fleet.ActorMaster
	}
	if err := s.cfg.Admit(ctx, req.Actor, "create", map[string]string{"task_id": req.TaskID}); err != nil {
		return nil, nil, err
	}
	p, err := validate(req, rules{
		limits: s.cfg.Limits, defaults: s.cfg.Defaults, async: async, hostIDs: s.hostKnown, seeds: s.cfg.Seed != nil,
	})
	if err != nil {
		return nil, nil, err
	}
	if p.spec.Image, err = s.cfg.Pin(ctx, p.spec.Image); err != nil {
		return nil, nil, err
	}
	for i, image := range p.spec.ServiceImages {
		if p.spec.ServiceImages[i], err = s.cfg.Pin(ctx, image); err != nil {
			return nil, nil, err
		}
	}
	end, err := s.begin()
	if err != nil {
		return nil, nil, err
	}
	leave, err := s.count()
	if err != nil {
		end()
		return nil, nil, err
	}
	b := s.newBuild(req, p)
	b.leave = leave
	ctx, b.span = tracing.Start(ctx, "create")
	b.span.Set(tracing.VMID, b.id)
	b.span.Set(tracing.UID, b.uid)
	b.span.Set(tracing.TaskID, b.taskID)
	j := s.newJob(ctx, b.uid)
	if err := s.advance(j.ctx, b, StepPlace); err != nil {
		err = s.failedClaim(b, err)
		s.cfg.Created(time.Since(b.began), b.record.Steps, err)
		b.span.End(err)
		s.drop(j)
		leave()
		end()
		return nil, nil, err
	}
	b.claimed = b.vm
	go func() {
		defer end()
		defer s.drop(j)
		s.finish(j, b)
	}()
	return b, j, nil
}

func (s *creator) newBuild(req CreateRequest, p plan) *build {
	b := &build{
		began: time.Now(), plan: p, uid: newULID(), taskID: req.TaskID, owner: req.Owner, actor: req.Actor,
		generation: 1, idempotency: req.Idempotency, fork: req.Fork, progress: &progress{fn: req.Progress},
	}
	if b.taskID == "" {
		b.taskID = "task-" + strings.ToLower(newULID())
	}
	b.id = s.cfg.VMPrefix + b.taskID
	b.spec.Name = b.id
	b.record.Mode = fleet.BootCold
	return b
}

func (s *creator) hostKnown(id string) (known bool) {
	// The claim looks again; a store that cannot be read answers there.
	_ = s.cfg.Store.View(func(tx *state.ReadTx) error {
		_, known = tx.Hosts().Get(id)
		return nil
	})
	return known
}

// count counts a create in, or refuses it when too many are claimed and
// unfinished already.
func (s *creator) count() (leave func(), err error) {
	s.mu.Lock()
	bound := s.cfg.Limits.Creates + s.cfg.Limits.Queue
	full := s.unfinished >= bound
	if !full {
		s.unfinished++
	}
	s.mu.Unlock()
	if full {
		return nil, fleet.Errorf(fleet.CodeUnavailable, "%d creates are in flight already", bound).
			With(fleet.DetailScope, "creates in flight").With(fleet.DetailLimit, strconv.Itoa(bound)).With(fleet.DetailUsage, strconv.Itoa(bound)).
			With(fleet.DetailRemedy, "try again in a few seconds").With("retry_after", "5")
	}
	return func() {
		s.mu.Lock()
		s.unfinished--
		s.mu.Unlock()
	}, nil
}

// slotsOf bounds the creates that act on one host at a time, so that a burst is
// as fast as the fleet is wide and one slow host holds up nobody else's.
func (s *creator) slotsOf(hostID string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slots[hostID] == nil {
		s.slots[hostID] = make(chan struct{}, s.cfg.Limits.Creates)
	}
	return s.slots[hostID]
}

// failedClaim answers a create that did not get past its claim. Without a
// committed row there is nothing to undo, and nothing that would have to wait
// for a store which cannot be written; a commit of unknown outcome shows again,
// if at all, to the recovery of the next start. A refusal, of a duplicate or
// for want of capacity, is no failure of a step.
func (s *creator) failedClaim(b *build, err error) error {
	name := s.steps[b.begun-1].name
	failure := b.stepError(name, err)
	if b.vm != nil {
		if undo := s.undo(b, failure); undo != nil {
			s.log.Error("claim not undone", slog.String("vm_id", b.id), slog.Any("error", undo))
		}
	}
	if refusal := b.fit(name, err); refusal.Code != fleet.CodeInternal {
		return refusal
	}
	return failure
}

// finish takes a claimed create to its end, whatever that is.
func (s *creator) finish(j *job, b *build) {
	err := s.act(j, b)
	b.span.Set(tracing.HostID, b.hostID)
	b.span.End(err)
	s.cfg.Created(time.Since(b.began), b.record.Steps, err)
	log := s.log.With(slog.String("vm_id", b.id), slog.String("host_id", b.hostID), slog.String("task_id", b.taskID))
	b.leave() // whoever hears of the end finds the place free
	switch {
	case err == nil:
		log.Info("environment running", slog.String("uid", b.uid))
		j.answer(b.vm, nil)
	case errors.Is(err, errStopping):
		log.Warn("create abandoned", slog.Any("error", err))
		j.answer(nil, fleet.Wrap(fleet.CodeUnavailable, err, fmt.Sprintf("the server stopped while it created %s; it is undone at the next start", b.id)))
	default:
		log.Warn("create failed", slog.Any("error", err))
		j.answer(nil, err)
	}
}

// act runs the steps after the claim under the environment's lock and undoes
// everything if one fails.
func (s *creator) act(j *job, b *build) error {
	slots := s.slotsOf(b.hostID)
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-j.ctx.Done():
		return taken(b, context.Cause(j.ctx))
	}
	unlock, err := s.locks.Take(j.ctx, b.id)
	if err != nil {
		return taken(b, err)
	}
	defer unlock()
	err = s.advance(j.ctx, b, StepSettle)
	if err == nil {
		return nil
	}
	if err = causeOf(j.ctx, err); errors.Is(err, errTaken) || errors.Is(err, errStopping) {
		return taken(b, err)
	}
	err = b.stepError(s.steps[b.begun-1].name, err)
	if errors.Is(err, fleet.ErrStoreUnavailable) {
		// Undoing waits for the store; the caller need not.
		j.answer(nil, err)
	}
	if undo := s.undo(b, err); undo != nil {
		s.log.Warn("failed create not undone yet", slog.String("vm_id", b.id), slog.String("host_id", b.hostID), slog.Any("error", undo))
	}
	return err
}

// row finds the create's own row, unless another claim has taken it over.
func (b *build) row(tx *state.ReadTx) (fleet.VM, error) {
	vm, ok := tx.VMs().Get(b.id)
	if !ok || vm.UID != b.uid || vm.Generation != b.generation || vm.State != fleet.VMStateProvisioning {
		return fleet.VM{}, errTaken
	}
	return *vm, nil
}

// taken is the answer to a caller whose create was overtaken by a destroy.
func taken(b *build, cause error) error {
	if !errors.Is(cause, errTaken) {
		return cause
	}
	return fleet.Wrap(fleet.CodeConflict, cause, fmt.Sprintf("environment %s was destroyed while it was being created", b.id)).
		With(fleet.DetailScope, b.id)
}
