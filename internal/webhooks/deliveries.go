package webhooks

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// deliveryOf is the message that an event becomes. Its id says which webhook
// and which event, so that it is the same whoever sends it again.
func deliveryOf(h *fleet.Webhook, e *fleet.Event, now time.Time) *fleet.Delivery {
	return &fleet.Delivery{
		ID: fmt.Sprintf("msg_%s_%020d", h.ID, e.Seq), WebhookID: h.ID, Seq: e.Seq, Type: e.Type, VMID: e.VMID,
		Body: events.Message(e), State: fleet.DeliveryPending, NextAt: now, CreatedAt: now,
	}
}

// noticeOf is a message that no event stands behind, at a place in the log.
func noticeOf(h *fleet.Webhook, at uint64, typ, suffix string, data any, now time.Time) *fleet.Delivery {
	return &fleet.Delivery{
		ID: fmt.Sprintf("msg_%s_%020d_%s", h.ID, at, typ) + suffix, WebhookID: h.ID, Type: typ,
		Body: events.Notice(typ, now, data), State: fleet.DeliveryPending, NextAt: now, CreatedAt: now,
	}
}

// TypePing is the type of a message that only tries whether one arrives.
const TypePing = "ping"

// TypeResync is the type of a message that says which events are missing.
const TypeResync = "resync"

// Test sends a ping at once and returns what became of it. It is tried once.
func (s *Service) Test(ctx context.Context, id, actor string) (fleet.Delivery, error) {
	h, err := s.Get(id)
	if err != nil {
		return fleet.Delivery{}, err
	}
	now := time.Now().UTC()
	_, head := s.cfg.Store.Head()
	d := noticeOf(&h, head, TypePing, "_"+uid.New(), map[string]string{"webhook_id": id, "asked_by": actor}, now)
	o := s.send(ctx, &h, d)
	if o.cut {
		return *d, fleet.Errorf(fleet.CodeDeadlineExceeded, "the ping was given up before there was an answer")
	}
	settle(d, o, now)
	if d.State == fleet.DeliveryPending {
		d.State, d.NextAt, d.EndedAt = fleet.DeliveryFailed, time.Time{}, now
	}
	_, err = s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		if _, ok := hooks.Get(tx, id); !ok {
			return notFound(id)
		}
		return keep(tx, id, []*fleet.Delivery{d})
	})
	return *d, err
}

// Deliveries returns up to limit deliveries of a webhook, the newest first,
// with ids below before unless that is empty, and whether there are more. An
// empty state takes all.
func (s *Service) Deliveries(id, before string, limit int, want fleet.DeliveryState) (out []fleet.Delivery, more bool, err error) {
	err = s.cfg.Store.View(func(tx *state.ReadTx) error {
		if _, ok := hooks.Get(tx, id); !ok {
			return notFound(id)
		}
		var all []*fleet.Delivery
		for _, d := range deliveries.Prefix(tx, id+"/") {
			if (want == "" || d.State == want) && (before == "" || d.ID < before) {
				all = append(all, d)
			}
		}
		more = len(all) > limit
		for _, d := range slices.Backward(all[max(0, len(all)-limit):]) {
			out = append(out, *d)
		}
		return nil
	})
	return out, more, err
}

// Pending counts the deliveries that are not done, and says when the one came
// to be that waits longest.
func (s *Service) Pending() (n int, oldest time.Time) {
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		for _, d := range deliveries.All(tx) {
			if d.State != fleet.DeliveryPending {
				continue
			}
			if n++; oldest.IsZero() || d.CreatedAt.Before(oldest) {
				oldest = d.CreatedAt
			}
		}
		return nil
	})
	if err != nil {
		return 0, time.Time{}
	}
	return n, oldest
}

// Resend sends a delivery again, whatever became of it, under the same id.
func (s *Service) Resend(ctx context.Context, id, delivery, actor string) (fleet.Delivery, error) {
	var out fleet.Delivery
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		h, ok := hooks.Get(tx, id)
		if !ok {
			return notFound(id)
		}
		d, ok := deliveries.Get(tx, key(id, delivery))
		if !ok {
			return fleet.Errorf(fleet.CodeNotFound, "webhook %s has no delivery %.140q", id, delivery).
				With(fleet.DetailScope, "delivery").With(fleet.DetailRemedy, fmt.Sprintf("the last %d of each webhook are kept", keptDone))
		}
		if h.Disabled != nil {
			return fleet.Errorf(fleet.CodeConflict, "webhook %s is disabled: %s", id, h.Disabled).
				With(fleet.DetailRemedy, "enable it first")
		}
		out = *d
		out.State, out.Attempts, out.NextAt, out.CreatedAt, out.EndedAt = fleet.DeliveryPending, 0, tx.Now(), tx.Now(), time.Time{}
		tell(tx, h, fleet.EventWebhookUpdated, &fleet.Reason{Actor: actor, Rule: fleet.RuleRequested, Evidence: "resend of " + delivery})
		return deliveries.Put(tx, key(id, delivery), &out)
	})
	return out, err
}

// renew gives what a webhook had set aside its full time again.
func renew(tx *state.Tx, hook string) error {
	var waiting []*fleet.Delivery
	for _, d := range deliveries.Prefix(tx, hook+"/") {
		if d.State == fleet.DeliveryPending {
			waiting = append(waiting, d)
		}
	}
	for _, d := range waiting {
		again := *d
		again.Attempts, again.NextAt, again.CreatedAt = 0, tx.Now(), tx.Now()
		if err := deliveries.Put(tx, key(hook, d.ID), &again); err != nil {
			return err
		}
	}
	return nil
}

// keep writes deliveries and forgets the oldest finished ones beyond what is
// kept of a webhook.
func keep(tx *state.Tx, hook string, changed []*fleet.Delivery) error {
	for _, d := range changed {
		if err := deliveries.Put(tx, key(hook, d.ID), d); err != nil {
			return err
		}
	}
	var done []*fleet.Delivery
	for _, d := range deliveries.Prefix(tx, hook+"/") {
		if d.State.Done() {
			done = append(done, d)
		}
	}
	slices.SortStableFunc(done, func(a, b *fleet.Delivery) int { return a.EndedAt.Compare(b.EndedAt) })
	for _, d := range done[:max(0, len(done)-keptDone)] {
		if err := deliveries.Delete(tx, key(hook, d.ID)); err != nil {
			return err
		}
	}
	return nil
}
