package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/snapshots"
	"github.com/fusevm/fuse/internal/state"
)

// Forker makes copies of environments.
type Forker interface {
	Fork(ctx context.Context, req snapshots.ForkRequest) (snapshots.Forks, error)
}

// Pauser lets environments stand still and go on.
type Pauser interface {
	Pause(ctx context.Context, id, actor string) (*fleet.VM, error)
	Resume(ctx context.Context, id, actor string) (*fleet.VM, error)
	// Progress is how far either is with a life; ok is false while nobody says.
	Progress(uid string) (p provider.SnapshotProgress, ok bool)
}

func without(what string) error {
	return fleet.Errorf(fleet.CodeUnimplemented, "this server has no %s", what)
}

func (s environmentRoutes) pause(w http.ResponseWriter, r *web.Request) error {
	if s.cfg.Pauser == nil {
		return without("pause")
	}
	return s.actWithRow(w, r, "pause", s.cfg.Pauser.Pause)
}

func (s environmentRoutes) resume(w http.ResponseWriter, r *web.Request) error {
	if s.cfg.Pauser == nil {
		return without("pause")
	}
	return s.actWithRow(w, r, "resume", s.cfg.Pauser.Resume)
}

func (s environmentRoutes) fork(w http.ResponseWriter, r *web.Request) error {
	if s.cfg.Forker == nil {
		return without("forks")
	}
	var body gen.ForkEnvironment
	if len(r.Payload) > 0 {
		if err := web.Decode(w, r, &body); err != nil {
			return err
		}
	}
	req := snapshots.ForkRequest{
		VMID: r.Param, Actor: r.Principal().Actor(), Comment: body.Comment, ReuseSnapshotID: body.ReuseSnapshotID, Live: body.Live, Count: body.Count,
	}
	many := body.Count > 1
	policy := idempotency.ByLife
	if many {
		policy = idempotency.Refuse
	}
	var out snapshots.Forks
	answer, err := web.Once(w, r, s.cfg.Keeper, policy, func(ctx context.Context, rec *state.Idempotency) (idempotency.Answer, error) {
		if rec != nil {
			rec.Status = http.StatusCreated
		}
		req.Idempotency = rec
		var err error
		if out, err = s.cfg.Forker.Fork(ctx, req); err != nil {
			return idempotency.Answer{}, err
		}
		if many {
			return idempotency.Answer{Status: http.StatusCreated, ResourceID: out.SnapshotID}, nil
		}
		return idempotency.Answer{Status: http.StatusCreated, ResourceID: out.Environments[0].UID}, nil
	})
	switch {
	case err != nil:
		return discreet(r.Principal(), err)
	case answer.Replayed && many:
		return s.replayForks(w, r, answer.ResourceID)
	case answer.Replayed:
		return s.replayEnvironment(w, http.StatusCreated, answer.ResourceID)
	case !many:
		return s.writeEnvironment(w, http.StatusCreated, out.Environments[0])
	}
	forks := gen.Forks{SnapshotID: out.SnapshotID, Environments: make([]gen.Environment, 0, len(out.Environments))}
	for _, vm := range out.Environments {
		forks.Environments = append(forks.Environments, environmentOf(vm))
	}
	for _, err := range out.Failures {
		r.Log.WarnContext(r.Context(), "fork failed", "vm_id", r.Param, "request_id", r.ID, "error", err)
		forks.Failures = append(forks.Failures, shownError(discreet(r.Principal(), err)))
	}
	web.WriteJSON(w, http.StatusCreated, forks)
	return nil
}

// shownError is what a caller may know of an error.
func shownError(err error) gen.ErrorInfo {
	var fe *fleet.Error
	if errors.As(err, &fe) {
		return gen.ErrorInfo{Code: string(fe.Code), Message: fe.Message, Details: fe.Details}
	}
	return gen.ErrorInfo{Code: string(fleet.CodeInternal), Message: "internal error; the server's log has it"}
}

// replayForks answers a repeated request with those of its forks that live.
func (s environmentRoutes) replayForks(w http.ResponseWriter, r *web.Request, snapshotID string) error {
	forks := gen.Forks{SnapshotID: snapshotID, Environments: []gen.Environment{}}
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		for vm := range tx.VMs().All() {
			if vm.Spec.SeedSnapshotID == snapshotID && r.Principal().Sees(vm.Owner) {
				forks.Environments = append(forks.Environments, environmentOf(vm))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusCreated, forks)
	return nil
}

// standing adds what an environment goes on from, and how it stands still.
func standing(env *gen.Environment, vm *fleet.VM) {
	env.SeedSnapshotID, env.Ancestors = vm.Spec.SeedSnapshotID, vm.Spec.Ancestors
	if p := vm.Paused; p != nil {
		env.Activity = string(p.Activity)
		env.Paused = &gen.Standstill{Since: p.At.UTC(), Reason: reasonOf(p.Reason), KeptBytes: p.KeptBytes, Error: p.LastError}
	}
	if c := vm.Certificate; c != nil {
		env.Certificate = &gen.Certificate{
			Cause: c.Cause, Generation: c.Generation, ClockMs: milliseconds(c.Clock), HeldMs: milliseconds(c.Held), At: c.At.UTC(),
			Renewed: make([]gen.Renewal, 0, len(c.Renewed)),
		}
		for _, n := range c.Renewed {
			env.Certificate.Renewed = append(env.Certificate.Renewed, gen.Renewal{Name: n.Name, Detail: n.Detail})
		}
	}
}

// doing tells how far an environment's host is with its pause or resumption.
func (s environmentRoutes) doing(env *gen.Environment) {
	if env.Paused == nil || s.cfg.Pauser == nil {
		return
	}
	if p, ok := s.cfg.Pauser.Progress(env.UID); ok {
		env.Paused.Progress = &gen.SnapshotProgress{Phase: p.Phase, DoneBytes: p.Done, TotalBytes: p.Total, BytesPerSecond: p.Rate}
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// appendStanding is the part of appendEnvironment for what standing adds. Few
// environments have any of it.
func appendStanding(o *object, env *gen.Environment) {
	o.optional("activity", env.Activity)
	if env.Paused != nil {
		o.document("paused", env.Paused)
	}
	o.optional("seed_snapshot_id", env.SeedSnapshotID)
	if len(env.Ancestors) > 0 {
		o.document("ancestors", env.Ancestors)
	}
	if env.Certificate != nil {
		o.document("certificate", env.Certificate)
	}
}

// document adds a member the way that the library writes it.
func (o *object) document(k string, v any) {
	raw, err := json.Marshal(v)
	if err != nil {
		return // plain data always encodes
	}
	o.key(k)
	o.b = append(o.b, raw...)
}
