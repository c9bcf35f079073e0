// Package reconcile holds the routes of the reconcile loop: how it stands, what
// it would do next, and the pauses of what it destroys.
package reconcile

import (
	"bytes"
	"context"
	"net/http"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/state"
)

// Loop is the converge loop.
type Loop interface {
	Status() (converge.Status, error)
	Preview(ctx context.Context) (converge.Preview, error)
	Pause(ctx context.Context, hostID, actor, reason string) (fleet.Pauses, error)
	Resume(ctx context.Context, hostID, actor string) (fleet.Pauses, error)
}

type routes struct {
	loop   Loop
	keeper web.Keeper
}

// Routes are the routes of the loop.
func Routes(loop Loop, keeper web.Keeper) []web.Route {
	s := routes{loop, keeper}
	return []web.Route{
		{Method: http.MethodGet, Pattern: "/v1/reconcile", Handle: s.status},
		{Method: http.MethodGet, Pattern: "/v1/reconcile/plan", Slow: true, Handle: s.plan},
		{Method: http.MethodPut, Pattern: "/v1/reconcile/pause", BodyLimit: web.BodyLimit, Handle: s.pause},
		{Method: http.MethodDelete, Pattern: "/v1/reconcile/pause", BodyLimit: web.BodyLimit, Handle: s.resume},
	}
}

func (s routes) status(w http.ResponseWriter, _ *web.Request) error {
	now, err := s.loop.Status()
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, statusOf(now))
	return nil
}

func (s routes) plan(w http.ResponseWriter, r *web.Request) error {
	p, err := s.loop.Preview(r.Context())
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, planOf(p))
	return nil
}

func (s routes) pause(w http.ResponseWriter, r *web.Request) error {
	var body gen.PauseReconcile
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	return s.change(w, r, func(ctx context.Context) (fleet.Pauses, error) {
		return s.loop.Pause(ctx, body.Host, r.Principal().Actor(), body.Reason)
	})
}

func (s routes) resume(w http.ResponseWriter, r *web.Request) error {
	if err := web.OnlyQuery(r.URL.Query(), "host"); err != nil {
		return err
	}
	if body := bytes.TrimSpace(r.Payload); len(body) > 0 && string(body) != "{}" {
		return fleet.Errorf(fleet.CodeInvalidArgument, "this takes no body").
			With(fleet.DetailScope, "body").With(fleet.DetailRemedy, "name a host as ?host=ID; without one the pause of the whole fleet ends")
	}
	return s.change(w, r, func(ctx context.Context) (fleet.Pauses, error) {
		return s.loop.Resume(ctx, r.URL.Query().Get("host"), r.Principal().Actor())
	})
}

// change answers with the pauses there are, a repeated request too: doing it
// again changes nothing.
func (s routes) change(w http.ResponseWriter, r *web.Request, do func(context.Context) (fleet.Pauses, error)) error {
	_, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		_, err := do(ctx)
		return idempotency.Answer{Status: http.StatusOK, ResourceID: "reconcile"}, err
	})
	if err != nil {
		return err
	}
	now, err := s.loop.Status()
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, gen.Pauses{Pauses: pausesOf(now.Pauses)})
	return nil
}
