package placing

import (
	"context"
	"net/http"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/quota"
	"github.com/fusevm/fuse/internal/state"
)

// Quotas keeps the limits.
type Quotas interface {
	List(sees func(owner string) bool) ([]quota.Entry, error)
	Get(id string, sees func(owner string) bool) (quota.Entry, error)
	Set(ctx context.Context, id string, change map[string]*int64, actor string) (quota.Entry, error)
	Remove(ctx context.Context, id, actor string) error
}

type quotas struct {
	service Quotas
	keeper  web.Keeper
}

// QuotaRoutes are the routes of quotas.
func QuotaRoutes(service Quotas, keeper web.Keeper) []web.Route {
	s := quotas{service, keeper}
	return []web.Route{
		{Method: http.MethodGet, Pattern: "/v1/quotas", Handle: s.list},
		{Method: http.MethodGet, Pattern: "/v1/quotas/{id}", Handle: s.get},
		{Method: http.MethodPatch, Pattern: "/v1/quotas/{id}", BodyLimit: web.BodyLimit, Handle: s.set},
		{Method: http.MethodDelete, Pattern: "/v1/quotas/{id}", BodyLimit: web.BodyLimit, Handle: s.remove},
	}
}

func (s quotas) list(w http.ResponseWriter, r *web.Request) error {
	entries, err := s.service.List(r.Principal().Sees)
	if err != nil {
		return err
	}
	out := gen.QuotaList{Quotas: make([]gen.Quota, 0, len(entries))}
	for i := range entries {
		out.Quotas = append(out.Quotas, quotaOf(&entries[i]))
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s quotas) get(w http.ResponseWriter, r *web.Request) error {
	e, err := s.service.Get(r.Param, r.Principal().Sees)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, quotaOf(&e))
	return nil
}

func (s quotas) set(w http.ResponseWriter, r *web.Request) error {
	var body gen.SetQuota
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	var e quota.Entry
	answer, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		var err error
		e, err = s.service.Set(ctx, r.Param, body.Limits, r.Principal().Actor())
		return idempotency.Answer{Status: http.StatusOK, ResourceID: r.Param}, err
	})
	if err == nil && answer.Replayed {
		e, err = s.service.Get(r.Param, r.Principal().Sees)
	}
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, quotaOf(&e))
	return nil
}

func (s quotas) remove(w http.ResponseWriter, r *web.Request) error {
	if _, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		return idempotency.Answer{Status: http.StatusNoContent, ResourceID: r.Param}, s.service.Remove(ctx, r.Param, r.Principal().Actor())
	}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func quotaOf(e *quota.Entry) gen.Quota {
	out := gen.Quota{ID: e.Scope.String(), Kind: e.Scope.Kind, Name: e.Scope.Name, Owner: e.Owner, Lines: make([]gen.QuotaLine, 0, len(e.Lines))}
	for _, l := range e.Lines {
		out.Lines = append(out.Lines, gen.QuotaLine{Dimension: l.Dimension, Unit: l.Unit, Used: l.Used, Limit: l.Limit, Default: l.Default})
	}
	return out
}
