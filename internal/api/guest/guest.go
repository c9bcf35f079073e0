// Package guest holds the routes that reach into environments: processes as
// objects, terminals and files.
package guest

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestops"
)

// Sessions opens the way into an environment.
type Sessions interface {
	Open(ctx context.Context, id string, use guestops.Use) (*guestops.Session, error)
}

// Config of the routes. All of it is needed.
type Config struct {
	Sessions Sessions
	// Streams bounds and ends what stays open long.
	Streams *web.Streams
}

type routes struct{ Config }

const (
	processesPath = "/v1/environments/{id}/processes"
	processPath   = processesPath + "/{process}"
)

// Routes are the routes of this area.
func Routes(cfg Config) []web.Route {
	s := routes{cfg}
	return append([]web.Route{
		{Method: http.MethodGet, Pattern: "/v1/environments/{id}/console", Handle: s.console},
		{Method: http.MethodGet, Pattern: "/v1/environments/{id}/services", Handle: s.services},
		{Method: http.MethodGet, Pattern: processesPath, Handle: s.list},
		{Method: http.MethodPost, Pattern: processesPath, BodyLimit: web.LargeLimit, Slow: true, Handle: s.start},
		{Method: http.MethodGet, Pattern: processPath, Slow: true, Handle: s.get},
		{Method: http.MethodPost, Pattern: processPath, BodyLimit: web.BodyLimit, Handle: s.act},
		{Method: http.MethodDelete, Pattern: processPath, Slow: true, Handle: s.remove},
		{Method: http.MethodGet, Pattern: processPath + "/output", Slow: true, Handle: s.output},
		{Method: http.MethodPut, Pattern: processPath + "/stdin", BodyLimit: web.LargeLimit, Slow: true, Handle: s.input},
		{Method: http.MethodGet, Pattern: "/v1/environments/{id}/attach", Slow: true, Handle: s.attach},
		{Method: http.MethodGet, Pattern: "/v1/environments/{id}/forward", Slow: true, Handle: s.forward},
	}, fileRoutes{s}.table()...)
}

// open opens a session for a request.
func (s routes) open(r *web.Request, verb string, params map[string]string) (*guestops.Session, error) {
	return s.Sessions.Open(r.Context(), r.Param, guestops.Use{Actor: r.Principal().Actor(), Verb: verb, Params: params})
}

// quickLimit bounds calls that the guest answers at once.
const quickLimit = 30 * time.Second

func quick(r *web.Request) (context.Context, context.CancelFunc) {
	return context.WithTimeout(r.Context(), quickLimit)
}

// number reads a whole number of the query that is not negative.
func number(q url.Values, name string) (int64, error) {
	text := q.Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fleet.Invalid(name, "a whole number, 0 or more", "leave it out to begin at 0", "%.40q is not allowed", text)
	}
	return n, nil
}

// flag reads a truth value of the query.
func flag(q url.Values, name string) (bool, error) {
	switch text := q.Get(name); text {
	case "", "0", "false":
		return false, nil
	case "1", "true":
		return true, nil
	default:
		return false, fleet.Invalid(name, "true or false", "leave it out for false", "%.40q is not allowed", text)
	}
}
