// Package keys holds the routes of API keys.
package keys

import (
	"context"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/keys"
	"github.com/fusevm/fuse/internal/state"
)

// Service keeps the keys.
type Service interface {
	Create(ctx context.Context, req keys.CreateRequest) (fleet.APIKey, string, error)
	Revoke(ctx context.Context, id, actor string) error
	Get(id string) (fleet.APIKey, error)
	List() ([]fleet.APIKey, error)
}

type routes struct {
	service Service
	keeper  web.Keeper
}

// Routes are the routes of API keys.
func Routes(service Service, keeper web.Keeper) []web.Route {
	s := routes{service, keeper}
	return []web.Route{
		{Method: http.MethodGet, Pattern: "/v1/api-keys", Handle: s.list},
		{Method: http.MethodPost, Pattern: "/v1/api-keys", BodyLimit: web.BodyLimit, Handle: s.create},
		{Method: http.MethodGet, Pattern: "/v1/api-keys/{id}", Handle: s.get},
		{Method: http.MethodDelete, Pattern: "/v1/api-keys/{id}", BodyLimit: web.BodyLimit, Handle: s.revoke},
	}
}

func (s routes) list(w http.ResponseWriter, _ *web.Request) error {
	list, err := s.service.List()
	if err != nil {
		return err
	}
	out := gen.KeyList{APIKeys: make([]gen.Key, 0, len(list))}
	for i := range list {
		out.APIKeys = append(out.APIKeys, keyOf(&list[i]))
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s routes) get(w http.ResponseWriter, r *web.Request) error {
	key, err := s.service.Get(r.Param)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, keyOf(&key))
	return nil
}

func keyOf(k *fleet.APIKey) gen.Key {
	return gen.Key{
		ID: k.ID, Label: k.Label, Role: string(k.Role), Owner: k.Owner, CreatedBy: k.CreatedBy, CreatedAt: k.CreatedAt.UTC(),
		ExpiresAt: k.ExpiresAt.UTC(), LastUsedAt: k.LastUsedAt.UTC(), RevokedAt: k.RevokedAt.UTC(), RevokedBy: k.RevokedBy,
	}
}

func (s routes) create(w http.ResponseWriter, r *web.Request) error {
	var body gen.CreateKey
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	req, err := toRequest(body, time.Now())
	if err != nil {
		return err
	}
	req.Actor = r.Principal().Actor()
	var made fleet.APIKey
	var text string
	answer, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		var err error
		if made, text, err = s.service.Create(ctx, req); err != nil {
			return idempotency.Answer{}, err
		}
		return idempotency.Answer{Status: http.StatusCreated, ResourceID: made.ID}, nil
	})
	switch {
	case err != nil:
		return err
	case answer.Replayed: // its text is not kept
		return fleet.Errorf(fleet.CodeConflict, "this Idempotency-Key has made API key %s, whose text was told then", answer.ResourceID).
			With(fleet.DetailRemedy, "revoke it and make another")
	}
	w.Header().Set("Location", web.Location("api-keys", made.ID))
	web.WriteJSON(w, http.StatusCreated, gen.NewKey{
		ID: made.ID, Label: made.Label, Role: string(made.Role), Owner: made.Owner, CreatedBy: made.CreatedBy,
		CreatedAt: made.CreatedAt.UTC(), ExpiresAt: made.ExpiresAt.UTC(), Key: text,
	})
	return nil
}

// toRequest reads a body. Without a role the key is a user's: what the clients
// of the public wire, which know no roles, ask for.
func toRequest(body gen.CreateKey, now time.Time) (keys.CreateRequest, error) {
	req := keys.CreateRequest{Label: body.Label, Role: fleet.Role(body.Role), Owner: body.Owner, ExpiresAt: body.ExpiresAt}
	if body.Role == "" {
		req.Role = fleet.RoleUser
	}
	const most = int64(keys.MaxLife / time.Second)
	switch in := body.ExpiresInSeconds; {
	case in == 0:
	case !body.ExpiresAt.IsZero():
		return req, fleet.Invalid("expires_in_seconds", "one of the two", "leave one out", "is given together with expires_at")
	case in < 0 || in > most:
		return req, fleet.Invalid("expires_in_seconds", "1 to ten years", "leave it out for a key that does not expire", "is %d", in)
	default:
		req.ExpiresAt = now.Add(time.Duration(in) * time.Second)
	}
	return req, nil
}

func (s routes) revoke(w http.ResponseWriter, r *web.Request) error {
	_, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		return idempotency.Answer{Status: http.StatusNoContent, ResourceID: r.Param}, s.service.Revoke(ctx, r.Param, r.Principal().Actor())
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
