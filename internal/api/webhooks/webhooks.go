// Package webhooks holds the routes of webhooks.
package webhooks

import (
	"context"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/webhooks"
)

// Reader looks webhooks and their deliveries up.
type Reader interface {
	Get(id string) (fleet.Webhook, error)
	List(after string, limit int) ([]fleet.Webhook, bool, error)
	Deliveries(id, before string, limit int, want fleet.DeliveryState) ([]fleet.Delivery, bool, error)
}

// Editor changes webhooks.
type Editor interface {
	Create(ctx context.Context, req webhooks.Request) (fleet.Webhook, string, error)
	Change(ctx context.Context, id string, req webhooks.Request) (fleet.Webhook, error)
	Delete(ctx context.Context, id, actor string) error
	Rotate(ctx context.Context, id, actor string, overlap time.Duration) (fleet.Webhook, string, error)
}

// Sender sends, and says whether anything is sent.
type Sender interface {
	Test(ctx context.Context, id, actor string) (fleet.Delivery, error)
	Resend(ctx context.Context, id, delivery, actor string) (fleet.Delivery, error)
	Enable(ctx context.Context, id, actor string) (fleet.Webhook, error)
	Disable(ctx context.Context, id, actor string) (fleet.Webhook, error)
}

// Service keeps the webhooks.
type Service interface {
	Reader
	Editor
	Sender
}

type routes struct {
	service Service
	keeper  web.Keeper
}

// Routes are the routes of webhooks.
func Routes(service Service, keeper web.Keeper) []web.Route {
	s := routes{service, keeper}
	return []web.Route{
		{Method: http.MethodGet, Pattern: "/v1/webhooks", Handle: s.list},
		{Method: http.MethodPost, Pattern: "/v1/webhooks", BodyLimit: web.BodyLimit, Handle: s.create},
		{Method: http.MethodGet, Pattern: "/v1/webhooks/{id}", Handle: s.get},
		{Method: http.MethodPatch, Pattern: "/v1/webhooks/{id}", BodyLimit: web.BodyLimit, Handle: s.change},
		{Method: http.MethodDelete, Pattern: "/v1/webhooks/{id}", BodyLimit: web.BodyLimit, Handle: s.remove},
		{Method: http.MethodPost, Pattern: "/v1/webhooks/{id}", BodyLimit: web.BodyLimit, Slow: true, Handle: s.act},
		{Method: http.MethodGet, Pattern: "/v1/webhooks/{id}/deliveries", Handle: s.deliveries},
	}
}

func (s routes) list(w http.ResponseWriter, r *web.Request) error {
	after, err := web.DecodeCursor(r.URL.Query().Get("cursor"))
	if err != nil {
		return err
	}
	rows, more, err := s.service.List(after, web.PageLimit(r.URL.Query()))
	if err != nil {
		return err
	}
	out := gen.WebhookList{Webhooks: make([]gen.Webhook, 0, len(rows))}
	for i := range rows {
		out.Webhooks = append(out.Webhooks, hookOf(&rows[i]))
	}
	if more {
		out.NextCursor = web.EncodeCursor(rows[len(rows)-1].ID)
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s routes) create(w http.ResponseWriter, r *web.Request) error {
	var body gen.CreateWebhook
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	filter := filterFrom(body.Filter)
	req := webhooks.Request{
		URL: &body.URL, Description: &body.Description, Filter: &filter, Secret: body.Secret,
		Owner: r.Principal().Name, Actor: r.Principal().Actor(),
	}
	var made fleet.Webhook
	var secret string
	answer, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		var err error
		if made, secret, err = s.service.Create(ctx, req); err != nil {
			return idempotency.Answer{}, err
		}
		return idempotency.Answer{Status: http.StatusCreated, ResourceID: made.ID}, nil
	})
	switch {
	case err != nil:
		return err
	case answer.Replayed: // its secret is not told again
		if made, err = s.service.Get(answer.ResourceID); err != nil {
			return err
		}
	}
	out := hookOf(&made)
	out.Secret = secret
	w.Header().Set("Location", web.Location("webhooks", made.ID))
	web.WriteJSON(w, http.StatusCreated, out)
	return nil
}

func (s routes) get(w http.ResponseWriter, r *web.Request) error {
	return answer(w)(s.service.Get(r.Param))
}

// answer writes a webhook, or passes an error on.
func answer(w http.ResponseWriter) func(fleet.Webhook, error) error {
	return func(h fleet.Webhook, err error) error {
		if err == nil {
			web.WriteJSON(w, http.StatusOK, hookOf(&h))
		}
		return err
	}
}

func (s routes) change(w http.ResponseWriter, r *web.Request) error {
	var body gen.ChangeWebhook
	if err := web.Decode(w, r, &body); err != nil {
		return err
	}
	req := webhooks.Request{URL: body.URL, Description: body.Description, Actor: r.Principal().Actor()}
	if body.Filter != nil {
		filter := filterFrom(*body.Filter)
		req.Filter = &filter
	}
	return answer(w)(s.service.Change(r.Context(), r.Param, req))
}

func (s routes) remove(w http.ResponseWriter, r *web.Request) error {
	_, err := web.Once(w, r, s.keeper, idempotency.RunAgain, func(ctx context.Context, _ *state.Idempotency) (idempotency.Answer, error) {
		return idempotency.Answer{Status: http.StatusNoContent, ResourceID: r.Param}, s.service.Delete(ctx, r.Param, r.Principal().Actor())
	})
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s routes) act(w http.ResponseWriter, r *web.Request) error {
	return web.Dispatch(map[string]web.Action{
		"test":    {BodyLimit: web.BodyLimit, Handle: s.test},
		"resend":  {BodyLimit: web.BodyLimit, Handle: s.resend},
		"rotate":  {BodyLimit: web.BodyLimit, Handle: s.rotate},
		"enable":  {BodyLimit: web.BodyLimit, Handle: s.enable},
		"disable": {BodyLimit: web.BodyLimit, Handle: s.disable},
	}, w, r)
}

func (s routes) test(w http.ResponseWriter, r *web.Request) error {
	d, err := s.service.Test(r.Context(), r.Param, r.Principal().Actor())
	if err == nil {
		web.WriteJSON(w, http.StatusOK, deliveryOf(&d))
	}
	return err
}

// action reads the body of an action; it may be missing.
func action(w http.ResponseWriter, r *web.Request) (body gen.WebhookAction, err error) {
	if len(r.Payload) > 0 {
		err = web.Decode(w, r, &body)
	}
	return body, err
}

func (s routes) resend(w http.ResponseWriter, r *web.Request) error {
	body, err := action(w, r)
	if err != nil {
		return err
	}
	if body.Delivery == "" {
		return fleet.Invalid("delivery", "the id of a delivery", "GET /v1/webhooks/{id}/deliveries lists them", "is missing")
	}
	d, err := s.service.Resend(r.Context(), r.Param, body.Delivery, r.Principal().Actor())
	if err == nil {
		web.WriteJSON(w, http.StatusOK, deliveryOf(&d))
	}
	return err
}

func (s routes) rotate(w http.ResponseWriter, r *web.Request) error {
	body, err := action(w, r)
	if err != nil {
		return err
	}
	overlap := webhooks.Overlap
	if n := body.OverlapSeconds; n != nil {
		const most = int(webhooks.MaxOverlap / time.Second)
		if *n < 0 || *n > most {
			return fleet.Invalid("overlap_seconds", "0 to a week", "give the time that the receiver needs to change over", "is %d", *n)
		}
		overlap = time.Duration(*n) * time.Second
	}
	h, secret, err := s.service.Rotate(r.Context(), r.Param, r.Principal().Actor(), overlap)
	if err != nil {
		return err
	}
	out := hookOf(&h)
	out.Secret = secret
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func (s routes) enable(w http.ResponseWriter, r *web.Request) error {
	return answer(w)(s.service.Enable(r.Context(), r.Param, r.Principal().Actor()))
}

func (s routes) disable(w http.ResponseWriter, r *web.Request) error {
	return answer(w)(s.service.Disable(r.Context(), r.Param, r.Principal().Actor()))
}

func (s routes) deliveries(w http.ResponseWriter, r *web.Request) error {
	q := r.URL.Query()
	before, err := web.DecodeCursor(q.Get("cursor"))
	if err != nil {
		return err
	}
	want := fleet.DeliveryState(q.Get("state"))
	switch want {
	case "", fleet.DeliveryPending, fleet.DeliveryDelivered, fleet.DeliveryFailed:
	default:
		return fleet.Invalid("state", "pending, delivered or failed", "leave it out for all", "cannot be %.40q", want)
	}
	rows, more, err := s.service.Deliveries(r.Param, before, web.PageLimit(q), want)
	if err != nil {
		return err
	}
	out := gen.DeliveryList{Deliveries: make([]gen.Delivery, 0, len(rows))}
	for i := range rows {
		out.Deliveries = append(out.Deliveries, deliveryOf(&rows[i]))
	}
	if more {
		out.NextCursor = web.EncodeCursor(rows[len(rows)-1].ID)
	}
	web.WriteJSON(w, http.StatusOK, out)
	return nil
}

func filterFrom(f gen.EventFilter) fleet.EventFilter {
	return fleet.EventFilter{Types: f.Types, Entity: f.Entity, VM: f.VM, Host: f.Host, Owner: f.Owner}
}

func hookOf(h *fleet.Webhook) gen.Webhook {
	out := gen.Webhook{
		ID: h.ID, Owner: h.Owner, URL: h.URL, Description: h.Description, Cursor: fleet.EventID(h.Cursor),
		Filter:       gen.EventFilter{Types: h.Filter.Types, Entity: h.Filter.Entity, VM: h.Filter.VM, Host: h.Filter.Host, Owner: h.Filter.Owner},
		FailingSince: h.FailingSince.UTC(), RetryAt: h.RetryAt.UTC(), DisabledAt: h.DisabledAt.UTC(),
		CreatedAt: h.CreatedAt.UTC(), UpdatedAt: h.UpdatedAt.UTC(),
	}
	if h.PreviousUntil.After(time.Now()) {
		out.PreviousSecretUntil = h.PreviousUntil.UTC()
	}
	if d := h.Disabled; d != nil {
		out.Disabled = &gen.Reason{Actor: d.Actor, Rule: d.Rule, Evidence: d.Evidence}
	}
	return out
}

func deliveryOf(d *fleet.Delivery) gen.Delivery {
	out := gen.Delivery{
		ID: d.ID, WebhookID: d.WebhookID, Type: d.Type, State: string(d.State), Attempts: d.Attempts, NextAt: d.NextAt.UTC(),
		Status: d.Status, TookMs: float32(d.Took.Microseconds()) / 1000, Answer: d.Answer, Error: d.Error, Body: string(d.Body),
		CreatedAt: d.CreatedAt.UTC(), EndedAt: d.EndedAt.UTC(),
	}
	if d.Seq != 0 {
		out.EventID = fleet.EventID(d.Seq)
	}
	return out
}
