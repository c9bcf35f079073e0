// Package deadletters holds the routes of dead letters.
package deadletters

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/deadletters"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/state"
)

// Service keeps the dead letters.
type Service interface {
	List(kind, after string, limit int) (list []fleet.DeadLetter, more bool, err error)
	Get(id string) (fleet.DeadLetter, error)
	Purge(ctx context.Context, id, actor string) error
	PurgeAll(ctx context.Context, f deadletters.Filter, actor string) (int, error)
}

type routes struct {
	service Service
	keeper  web.Keeper
}

// Routes are the routes of dead letters.
func Routes(service Service, keeper web.Keeper) []web.Route {
	s := routes{service, keeper}
	return []web.Route{
		{Method: http.MethodGet, Pattern: "/v1/dead-letters", Handle: s.list},
		{Method: http.MethodDelete, Pattern: "/v1/dead-letters", BodyLimit: web.BodyLimit, Slow: true, Handle: s.purgeAll},
		{Method: http.MethodGet, Pattern: "/v1/dead-letters/{id}", Handle: s.get},
		{Method: http.MethodDelete, Pattern: "/v1/dead-letters/{id}", BodyLimit: web.BodyLimit, Handle: s.purge},
	}
}

func (s routes) list(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	after, err := web.DecodeCursor(q.Get("cursor"))
	if err != nil {
		return err
	}
	list, more, err := s.service.List(q.Get("kind"), after, web.PageLimit(q))
	if err != nil {
		return err
	}
	out := gen.DeadLetterList{DeadLetters: make([]gen.DeadLetter, 0, len(list))}
	for i := range list {
		out.DeadLetters = append(out.DeadLetters, deadLetterOf(&list[i]))
	}
	if more {
		out.NextCursor = web.EncodeCursor(deadletters.ID(&list[len(list)-1]))
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s routes) get(w http.ResponseWriter, r *web.Request) error {
	d, err := s.service.Get(r.Param)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, deadLetterOf(&d))
	return nil
}

func deadLetterOf(d *fleet.DeadLetter) gen.DeadLetter {
	out := gen.DeadLetter{
		ID: deadletters.ID(d), Kind: string(d.Kind), EntityID: d.EntityID, TaskID: d.TaskID, Reason: d.Reason, RetryCount: d.RetryCount,
		FirstSeenAt: d.FirstSeenAt.UTC(), LastSeenAt: d.LastSeenAt.UTC(),
	}
	if len(d.Payload) > 0 && json.Unmarshal(d.Payload, &out.Payload) != nil {
		out.Payload = nil // no object: nothing that this wire can show
	}
	return out
}

func (s routes) purge(w http.ResponseWriter, r *web.Request) error {
	if _, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		return idempotency.Answer{Status: http.StatusNoContent, ResourceID: r.Param}, s.service.Purge(ctx, r.Param, r.Principal().Actor())
	}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s routes) purgeAll(w http.ResponseWriter, r *web.Request) error {
	f, err := filterOf(r.URL.Query())
	if err != nil {
		return err
	}
	var out gen.Purged
	if _, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		n, err := s.service.PurgeAll(ctx, f, r.Principal().Actor())
		out.Purged = &n
		return idempotency.Answer{Status: http.StatusOK}, err
	}); err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func filterOf(q url.Values) (f deadletters.Filter, err error) {
	if err := web.OnlyQuery(q, "kind", "older_than_seconds", "all"); err != nil {
		return f, err
	}
	f.Kind = q.Get("kind")
	if text := q.Get("older_than_seconds"); text != "" {
		const most = int64(1<<63-1) / int64(time.Second)
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 || n > most {
			return f, fleet.Invalid("older_than_seconds", "a number of seconds above 0", "leave it out for any age", "is %.40q", text)
		}
		f.OlderThan = time.Duration(n) * time.Second
	}
	switch text := q.Get("all"); text {
	case "", "false":
	case "true":
		f.All = true
	default:
		return f, fleet.Invalid("all", "true or false", "leave it out", "is %.40q", text)
	}
	return f, nil
}
