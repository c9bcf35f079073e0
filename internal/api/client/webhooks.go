package client

import (
	"context"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Webhooks are the webhooks of a server.
type Webhooks struct{ api *API }

// NewWebhooks works on webhooks by a's connection.
func NewWebhooks(a *API) Webhooks { return Webhooks{a} }

// List returns one page of webhooks.
func (w Webhooks) List(ctx context.Context, params gen.ListWebhooksParams) (page gen.WebhookList, err error) {
	resp, err := w.api.raw.ListWebhooks(ctx, &params)
	return page, decode(resp, err, &page)
}

// Get returns one webhook.
func (w Webhooks) Get(ctx context.Context, id string) (h gen.Webhook, err error) {
	resp, err := w.api.raw.GetWebhook(ctx, id)
	return h, decode(resp, err, &h)
}

// Create makes a webhook; its secret is in the answer and never again.
func (w Webhooks) Create(ctx context.Context, req gen.CreateWebhook) (h gen.Webhook, err error) {
	resp, err := w.api.raw.CreateWebhook(ctx, &gen.CreateWebhookParams{}, req)
	return h, decode(resp, err, &h)
}

// Change changes what req has of a webhook.
func (w Webhooks) Change(ctx context.Context, id string, req gen.ChangeWebhook) (h gen.Webhook, err error) {
	resp, err := w.api.raw.ChangeWebhook(ctx, id, req)
	return h, decode(resp, err, &h)
}

// Delete deletes a webhook.
func (w Webhooks) Delete(ctx context.Context, id string) error {
	resp, err := w.api.raw.DeleteWebhook(ctx, id)
	return decode(resp, err, nil)
}

// Test has a ping sent and returns what became of it.
func (w Webhooks) Test(ctx context.Context, id string) (d gen.Delivery, err error) {
	return d, w.act(ctx, id, "test", gen.WebhookAction{}, &d)
}

// Resend has a delivery sent again.
func (w Webhooks) Resend(ctx context.Context, id, delivery string) (d gen.Delivery, err error) {
	return d, w.act(ctx, id, "resend", gen.WebhookAction{Delivery: delivery}, &d)
}

// Rotate gives a webhook a new secret, which is in the answer.
func (w Webhooks) Rotate(ctx context.Context, id string, overlapSeconds *int) (h gen.Webhook, err error) {
	return h, w.act(ctx, id, "rotate", gen.WebhookAction{OverlapSeconds: overlapSeconds}, &h)
}

// Enable lets a webhook send, or with on false stops it.
func (w Webhooks) Enable(ctx context.Context, id string, on bool) (h gen.Webhook, err error) {
	action := "enable"
	if !on {
		action = "disable"
	}
	return h, w.act(ctx, id, action, gen.WebhookAction{}, &h)
}

func (w Webhooks) act(ctx context.Context, id, action string, body gen.WebhookAction, into any) error {
	resp, err := w.api.raw.ActOnWebhook(ctx, id, &gen.ActOnWebhookParams{Action: action}, body)
	return decode(resp, err, into)
}

// Deliveries returns one page of what became of a webhook's messages.
func (w Webhooks) Deliveries(ctx context.Context, id string, params gen.ListDeliveriesParams) (page gen.DeliveryList, err error) {
	resp, err := w.api.raw.ListDeliveries(ctx, id, &params)
	return page, decode(resp, err, &page)
}
