package api

import (
	"context"
	"net/http"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/state"
)

// hostRoutes answers for hosts.
type hostRoutes struct{ *Server }

func (s hostRoutes) listHosts(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	after, err := web.DecodeCursor(q.Get("cursor"))
	if err != nil {
		return err
	}
	limit := web.PageLimit(q)
	page := gen.HostList{Hosts: []gen.HostInfo{}}
	err = s.cfg.Store.View(func(tx *state.ReadTx) error {
		for h := range tx.Hosts().All() {
			if h.ID <= after {
				continue
			}
			if len(page.Hosts) == limit {
				page.NextCursor = web.EncodeCursor(page.Hosts[limit-1].ID)
				return nil
			}
			page.Hosts = append(page.Hosts, hostOf(h, s.cfg.Hosts.Sighting(h.ID)))
		}
		return nil
	})
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, page)
	return nil
}

func (s hostRoutes) getHost(w http.ResponseWriter, r *web.Request) error {
	info, err := s.host(r.Param)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, info)
	return nil
}

func (s hostRoutes) host(id string) (info gen.HostInfo, err error) {
	err = s.cfg.Store.View(func(tx *state.ReadTx) error {
		h, ok := tx.Hosts().Get(id)
		if !ok {
			return fleet.Errorf(fleet.CodeNotFound, "host %.80q: %w", id, fleet.ErrHostNotFound)
		}
		info = hostOf(h, s.cfg.Hosts.Sighting(id))
		return nil
	})
	return info, err
}

func (s hostRoutes) registerHost(w http.ResponseWriter, r *web.Request) error {
	var body gen.RegisterHost
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	p := r.Principal()
	req := hosts.RegisterRequest{
		ID: body.ID, Owner: p.Name, Actor: p.Actor(), URL: body.URL, Token: body.Token, CertSHA256: body.CertSha256,
		Region: body.Region, Backend: fleet.HostBackend(body.Backend), Labels: body.Labels, Capacity: toCapacity(body.Capacity),
	}
	var made fleet.Host
	answer, err := web.Once(w, r, s.cfg.Keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		var err error
		if made, err = s.cfg.Hosts.Register(ctx, req); err != nil {
			return idempotency.Answer{}, err
		}
		return idempotency.Answer{Status: http.StatusCreated, ResourceID: made.ID}, nil
	})
	if err != nil {
		return err
	}
	info := hostOf(&made, s.cfg.Hosts.Sighting(made.ID))
	if answer.Replayed {
		if info, err = s.host(answer.ResourceID); err != nil {
			return err
		}
	}
	w.Header().Set("Location", web.Location("hosts", info.ID))
	web.WriteJSON(w, http.StatusCreated, info)
	return nil
}

func (s hostRoutes) removeHost(w http.ResponseWriter, r *web.Request) error {
	return s.hostVerb(w, r, s.cfg.Hosts.Remove)
}

func (s hostRoutes) cordon(on bool) web.Handler {
	return func(w http.ResponseWriter, r *web.Request) error {
		if on {
			return s.hostVerb(w, r, s.cfg.Hosts.Cordon)
		}
		return s.hostVerb(w, r, s.cfg.Hosts.Uncordon)
	}
}

// hostVerb runs a verb that answers with nothing.
func (s hostRoutes) hostVerb(w http.ResponseWriter, r *web.Request, verb func(context.Context, string, string) error) error {
	_, err := web.Once(w, r, s.cfg.Keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		return idempotency.Answer{Status: http.StatusNoContent, ResourceID: r.Param}, verb(ctx, r.Param, r.Principal().Actor())
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
