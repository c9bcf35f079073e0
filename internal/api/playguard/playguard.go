// Package playguard holds the routes of marquees and playgrounds.
package playguard

import (
	"context"
	"net/http"
	"strconv"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/state"
)

// UpLimit bounds the body of an up in bytes: service.MaxBytes in base64, and
// what is around it.
const UpLimit = 12 << 20

type routes struct {
	service *service.Service
	keeper  web.Keeper
	streams *web.Streams
}

// Routes are the routes of marquees and playgrounds. Streams bounds the logs
// and commands that are open.
func Routes(s *service.Service, keeper web.Keeper, streams *web.Streams) []web.Route {
	r := routes{s, keeper, streams}
	return []web.Route{
		{Method: http.MethodGet, Pattern: "/v1/marquees", Handle: r.marquees},
		{Method: http.MethodPost, Pattern: "/v1/marquees", BodyLimit: web.LargeLimit, Slow: true, Handle: r.addMarquee},
		{Method: http.MethodGet, Pattern: "/v1/marquees/{id}", Handle: r.marquee},
		{Method: http.MethodPost, Pattern: "/v1/marquees/{id}", BodyLimit: web.BodyLimit, Slow: true, Handle: r.actOnMarquee},
		{Method: http.MethodDelete, Pattern: "/v1/marquees/{id}", BodyLimit: web.BodyLimit, Slow: true, Handle: r.removeMarquee},
		{Method: http.MethodGet, Pattern: "/v1/playgrounds", Handle: r.playgrounds},
		{Method: http.MethodPost, Pattern: "/v1/playgrounds", BodyLimit: UpLimit, Slow: true, Handle: r.up},
		{Method: http.MethodPost, Pattern: "/v1/playground-plans", BodyLimit: UpLimit, Slow: true, Handle: r.plan},
		{Method: http.MethodGet, Pattern: "/v1/playgrounds/{id}", Slow: true, Handle: r.playground},
		{Method: http.MethodPost, Pattern: "/v1/playgrounds/{id}", BodyLimit: web.BodyLimit, Slow: true, Handle: r.actOnPlayground},
		{Method: http.MethodDelete, Pattern: "/v1/playgrounds/{id}", BodyLimit: web.BodyLimit, Slow: true, Handle: r.removePlayground},
		{Method: http.MethodGet, Pattern: "/v1/playgrounds/{id}/explain", Handle: r.explain},
		{Method: http.MethodGet, Pattern: "/v1/playgrounds/{id}/logs", Slow: true, Handle: r.logs},
		{Method: http.MethodGet, Pattern: "/v1/playgrounds/{id}/exec", Slow: true, Handle: r.exec},
	}
}

// flag reads a boolean of the query; one that is no boolean is refused.
func flag(r *web.Request, name string) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, fleet.Invalid(name, "true or false", "", "is %.40q", text)
	}
	return v, nil
}

// count reads a number of the query, 0 to most.
func count(r *web.Request, name string, most int) (n int, given bool, err error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return 0, false, nil
	}
	if n, err = strconv.Atoi(text); err != nil || n < 0 || n > most {
		return 0, false, fleet.Invalid(name, "0 to "+strconv.Itoa(most), "", "is %.40q", text)
	}
	return n, true, nil
}

// once runs a request under its Idempotency-Key. Do returns the id of what it
// worked on; for one that is repeated again is called with that instead.
func once[T any](w http.ResponseWriter, r *web.Request, k web.Keeper, status int, do func(context.Context) (T, string, error), again func(context.Context, string) (T, error)) (T, error) {
	var made T
	answer, err := web.Once(w, r, k, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		var id string
		var err error
		if made, id, err = do(ctx); err != nil {
			return idempotency.Answer{}, err
		}
		return idempotency.Answer{Status: status, ResourceID: id}, nil
	})
	if err == nil && answer.Replayed {
		made, err = again(r.Context(), answer.ResourceID)
	}
	return made, err
}

func (s routes) getPlayground(ctx context.Context, id string) (service.Playground, error) {
	return s.service.Playground(ctx, id)
}

func playgroundID(p service.Playground, err error) (service.Playground, string, error) {
	return p, string(p.ID), err
}

func marqueeID(m service.Marquee, err error) (service.Marquee, string, error) {
	return m, string(m.ID), err
}

func (s routes) marquees(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	after, err := web.DecodeCursor(q.Get("cursor"))
	if err != nil {
		return err
	}
	page, err := s.service.Marquees(r.Context(), service.ListOptions{After: after, Limit: web.PageLimit(q)})
	if err != nil {
		return err
	}
	out := gen.MarqueeList{Marquees: make([]gen.Marquee, 0, len(page.Items))}
	for _, m := range page.Items {
		out.Marquees = append(out.Marquees, marqueeOf(m, r.Principal().SeesAll()))
	}
	if page.Next != "" {
		out.NextCursor = web.EncodeCursor(page.Next)
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s routes) marquee(w http.ResponseWriter, r *web.Request) error {
	m, err := s.service.Marquee(r.Context(), r.Param)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, marqueeOf(m, r.Principal().SeesAll()))
	return nil
}

func (s routes) addMarquee(w http.ResponseWriter, r *web.Request) error {
	var body gen.AddMarquee
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	req, err := newMarqueeOf(body)
	if err != nil {
		return err
	}
	m, err := once(w, r, s.keeper, http.StatusCreated,
		func(ctx context.Context) (service.Marquee, string, error) {
			return marqueeID(s.service.AddMarquee(ctx, req))
		}, s.service.Marquee)
	if err != nil {
		return err
	}
	w.Header().Set("Location", web.Location("marquees", string(m.ID)))
	web.WriteJSON(w, http.StatusCreated, marqueeOf(m, true))
	return nil
}

func (s routes) actOnMarquee(w http.ResponseWriter, r *web.Request) error {
	var body gen.MarqueeAction
	if len(r.Payload) > 0 {
		if err := web.Decode(w, r, &body); err != nil {
			return err
		}
	}
	change := func(do func(context.Context) (service.Marquee, error)) web.Handler {
		return func(w http.ResponseWriter, r *web.Request) error {
			m, err := once(w, r, s.keeper, http.StatusOK,
				func(ctx context.Context) (service.Marquee, string, error) { return marqueeID(do(ctx)) }, s.service.Marquee)
			if err != nil {
				return err
			}
			web.WriteJSON(w, http.StatusOK, marqueeOf(m, true))
			return nil
		}
	}
	return web.Dispatch(map[string]web.Action{
		"check": {BodyLimit: web.BodyLimit, Handle: s.check},
		"quarantine": {BodyLimit: web.BodyLimit, Handle: change(func(ctx context.Context) (service.Marquee, error) {
			return s.service.QuarantineMarquee(ctx, r.Param, body.Why)
		})},
		"return": {BodyLimit: web.BodyLimit, Handle: change(func(ctx context.Context) (service.Marquee, error) {
			return s.service.ReturnMarquee(ctx, r.Param, service.ReturnMarquee{HostKey: body.HostKey, AcceptIdentity: body.AcceptIdentity})
		})},
		"expiry": {BodyLimit: web.BodyLimit, Handle: change(func(ctx context.Context) (service.Marquee, error) {
			return service.SetDefaultExpiry(ctx, s.service, r.Param, body.DefaultExpiry)
		})},
		"policy": {BodyLimit: web.BodyLimit, Handle: change(func(ctx context.Context) (service.Marquee, error) {
			return s.service.SetPolicy(ctx, r.Param, body.Policy)
		})},
	}, w, r)
}

func (s routes) check(w http.ResponseWriter, r *web.Request) error {
	c, err := s.service.CheckMarquee(r.Context(), r.Param)
	if err != nil {
		return err
	}
	out := gen.MarqueeCheck{OK: c.OK, Points: make([]gen.MarqueeCheckPoint, 0, len(c.Points)), Look: lookOf(c.Look)}
	for _, p := range c.Points {
		out.Points = append(out.Points, gen.MarqueeCheckPoint{Name: p.Name, OK: p.OK, Asked: p.Asked, Text: p.Text, Remedy: p.Remedy})
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s routes) removeMarquee(w http.ResponseWriter, r *web.Request) error {
	if err := web.OnlyQuery(r.URL.Query(), "forget"); err != nil {
		return err
	}
	forget, err := flag(r, "forget")
	if err != nil {
		return err
	}
	if _, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		return idempotency.Answer{Status: http.StatusNoContent, ResourceID: r.Param}, s.service.RemoveMarquee(ctx, r.Param, forget)
	}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
