// Package notify holds the routes of notifications.
package notify

import (
	"context"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/playguard/notify"
	"github.com/fusevm/fuse/internal/state"
)

type routes struct {
	service *notify.Service
	keeper  web.Keeper
}

// Routes are the routes of notifications.
func Routes(s *notify.Service, keeper web.Keeper) []web.Route {
	r := routes{s, keeper}
	return []web.Route{
		{Method: http.MethodGet, Pattern: "/v1/notification-routes", Handle: r.list},
		{Method: http.MethodPost, Pattern: "/v1/notification-routes", BodyLimit: web.BodyLimit, Handle: r.add},
		{Method: http.MethodGet, Pattern: "/v1/notification-routes/{id}", Handle: r.get},
		{Method: http.MethodPost, Pattern: "/v1/notification-routes/{id}", BodyLimit: web.BodyLimit, Slow: true, Handle: r.act},
		{Method: http.MethodDelete, Pattern: "/v1/notification-routes/{id}", BodyLimit: web.BodyLimit, Handle: r.remove},
		{Method: http.MethodGet, Pattern: "/v1/notification-mail", Handle: r.mail},
		{Method: http.MethodPut, Pattern: "/v1/notification-mail", BodyLimit: web.BodyLimit, Handle: r.setMail},
		{Method: http.MethodDelete, Pattern: "/v1/notification-mail", BodyLimit: web.BodyLimit, Handle: r.removeMail},
	}
}

func (s routes) list(w http.ResponseWriter, r *web.Request) error {
	all, err := s.service.List(r.Context())
	if err != nil {
		return err
	}
	out := gen.NotificationRouteList{Routes: make([]gen.NotificationRoute, 0, len(all))}
	for _, t := range all {
		out.Routes = append(out.Routes, routeOf(t))
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s routes) add(w http.ResponseWriter, r *web.Request) error {
	var body gen.AddNotificationRoute
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	req := notify.NewRoute{
		Name: body.Name, Scope: notify.Scope(body.Scope), Marquee: body.Marquee, Channel: notify.Channel(body.Channel), URL: body.URL, Secret: body.Secret,
		To: body.To, Events: body.Events, Most: body.Most, Window: time.Duration(min(body.WindowSeconds, 1<<32)) * time.Second,
	}
	var made notify.Told
	answer, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		var err error
		made, err = s.service.Add(ctx, req)
		return idempotency.Answer{Status: http.StatusCreated, ResourceID: made.ID}, err
	})
	if err == nil && answer.Replayed { // its secret is not told again
		made, err = s.service.Get(r.Context(), answer.ResourceID)
	}
	if err != nil {
		return err
	}
	w.Header().Set("Location", web.Location("notification-routes", made.ID))
	web.WriteJSON(w, http.StatusCreated, routeOf(made))
	return nil
}

func (s routes) get(w http.ResponseWriter, r *web.Request) error {
	return answer(w)(s.service.Get(r.Context(), r.Param))
}

func answer(w http.ResponseWriter) func(notify.Told, error) error {
	return func(t notify.Told, err error) error {
		if err == nil {
			web.WriteJSON(w, http.StatusOK, routeOf(t))
		}
		return err
	}
}

func (s routes) act(w http.ResponseWriter, r *web.Request) error {
	pause := func(on bool) web.Action {
		return web.Action{BodyLimit: web.BodyLimit, Handle: func(w http.ResponseWriter, r *web.Request) error {
			return answer(w)(s.service.Pause(r.Context(), r.Param, on))
		}}
	}
	return web.Dispatch(map[string]web.Action{
		"test": {BodyLimit: web.BodyLimit, Handle: func(w http.ResponseWriter, r *web.Request) error {
			return answer(w)(s.service.Test(r.Context(), r.Param))
		}},
		"pause": pause(true), "resume": pause(false),
	}, w, r)
}

func (s routes) remove(w http.ResponseWriter, r *web.Request) error {
	return s.gone(w, r, func(ctx context.Context) error { return s.service.Remove(ctx, r.Param) })
}

func (s routes) removeMail(w http.ResponseWriter, r *web.Request) error {
	return s.gone(w, r, s.service.RemoveMail)
}

func (s routes) gone(w http.ResponseWriter, r *web.Request, do func(context.Context) error) error {
	if _, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		return idempotency.Answer{Status: http.StatusNoContent, ResourceID: r.Param}, do(ctx)
	}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s routes) mail(w http.ResponseWriter, _ *web.Request) error {
	m, err := s.service.Mail()
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, mailOf(m))
	return nil
}

func (s routes) setMail(w http.ResponseWriter, r *web.Request) error {
	var body gen.NotificationMail
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	m, err := s.service.SetMail(r.Context(), notify.Mail{
		Host: body.Host, Port: body.Port, TLS: notify.TLS(body.TLS), User: body.User, From: body.From, CA: body.CA,
	}, body.Password)
	if err != nil {
		return err
	}
	web.WriteJSON(w, http.StatusOK, mailOf(m))
	return nil
}

func mailOf(m notify.Mail) gen.NotificationMail {
	return gen.NotificationMail{
		Host: m.Host, Port: m.Port, TLS: string(m.TLS), User: m.User, HasPassword: len(m.PasswordSealed) > 0, From: m.From, CA: m.CA,
	}
}

func routeOf(t notify.Told) gen.NotificationRoute {
	out := gen.NotificationRoute{
		ID: t.ID, Name: t.Name, Owner: t.Owner, Scope: string(t.Scope), Marquee: string(t.Marquee), Channel: string(t.Channel), URL: t.Shown, Secret: t.Secret,
		To: t.To, Events: t.Events, Most: t.Most, WindowSeconds: int64(t.Window / time.Second), Paused: t.Paused, Pending: t.Pending,
		Sent: t.Sent, GivenUp: t.GivenUp, Error: t.Error, CreatedAt: t.CreatedAt.UTC(),
	}
	if !t.LastSent.IsZero() {
		out.LastSent = t.LastSent.UTC()
	}
	return out
}
