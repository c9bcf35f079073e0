package webhooks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

var errHookGone = errors.New("the webhook is gone")

// saveEvery is how often the place in the log is kept while a webhook passes
// over what it does not want.
const saveEvery = 30 * time.Second

// round is one turn of a webhook: what of it is to be tried, and what came of
// that. It returns when the next one is due; zero: when something is committed.
func (w *worker) round(ctx context.Context) (next time.Time, err error) {
	h, pending, err := w.load()
	if err != nil || h.Disabled != nil {
		w.deaf.Store(true) // until the row changes
		return time.Time{}, err
	}
	now := time.Now().UTC()
	t := &turn{hook: h, pending: pending, pos: w.pos, now: now, down: h.Failures >= downAfter && len(pending) > 0}
	if w.deaf.Store(t.down); t.down && now.Before(h.RetryAt) {
		return h.RetryAt, nil
	}
	if err := w.fill(ctx, t); err != nil {
		return time.Time{}, err
	}
	t.try, next = t.pick()
	if len(t.try) > 0 {
		w.attempt(ctx, t)
	}
	if err := w.record(ctx, t); err != nil {
		return time.Time{}, err
	}
	if len(t.try) > 0 || t.more {
		return now, nil
	}
	if save := w.saved.Add(saveEvery); w.unsaved && (next.IsZero() || save.Before(next)) {
		next = save
	}
	return next, nil
}

// turn is one round of one webhook.
type turn struct {
	hook    *fleet.Webhook
	pending queue
	fresh   []*fleet.Delivery // from the log, not stored yet
	try     []*fleet.Delivery
	results map[*fleet.Delivery]outcome
	pos     uint64 // how far the log has been read
	gap     *gap
	more    bool // the log has more
	down    bool // the receiver is: one message is tried, to see whether it is back
	now     time.Time
}

// gap is what is missing of the log.
type gap struct {
	From string `json:"missed_from"`
	To   string `json:"missed_to"`
	Why  string `json:"reason"`
}

func (w *worker) load() (h *fleet.Webhook, pending queue, err error) {
	err = w.s.cfg.Store.View(func(tx *state.ReadTx) error {
		row, ok := hooks.Get(tx, w.id)
		if !ok {
			return errHookGone
		}
		h = row
		for _, d := range deliveries.Prefix(tx, w.id+"/") {
			if d.State == fleet.DeliveryPending {
				own := *d
				pending = append(pending, &own)
			}
		}
		return nil
	})
	return h, pending, err
}

// fill reads on in the log, as far as there is room to set messages aside.
func (w *worker) fill(ctx context.Context, t *turn) error {
	room := min(maxPending-len(t.pending), batchSize)
	if room <= 0 || t.down {
		return nil
	}
	sel, err := events.Compile(t.hook.Filter)
	if err != nil {
		return err
	}
	_, head := w.s.cfg.Store.Head()
	if t.pos > head {
		t.skip(t.pos, head, "the log is shorter than it was: the state was restored")
	}
	for len(t.fresh) < room {
		page, err := w.s.cfg.Store.Events(ctx, state.EventQuery{After: t.pos, Limit: state.MaxEventPage})
		if err != nil {
			return err
		}
		if len(page) == 0 && t.pos < head {
			t.skip(t.pos, head, "they are not kept any more")
		}
		for i := range page {
			e := &page[i]
			if e.Seq != t.pos+1 {
				t.skip(t.pos, e.Seq-1, "they are not kept any more")
			}
			t.pos = e.Seq
			if sel.Match(e) && !ownEvent(t.hook, e) {
				t.fresh = append(t.fresh, deliveryOf(t.hook, e, t.now))
			}
			if len(t.fresh) == room {
				break
			}
		}
		if t.more = len(t.fresh) == room; t.more || len(page) < state.MaxEventPage {
			return nil
		}
	}
	return nil
}

// ownEvent reports whether an event is about the webhook itself: telling it of
// its own failures would make more of them.
func ownEvent(h *fleet.Webhook, e *fleet.Event) bool {
	return e.EntityType == fleet.EntityWebhook && e.EntityID == h.ID
}

// skip goes on at another place of the log and says so to the receiver.
func (t *turn) skip(after, to uint64, why string) {
	from := after + 1
	if to < after { // the log was set back
		from = to
	}
	t.gap = &gap{From: fleet.EventID(from), To: fleet.EventID(to), Why: why}
	t.fresh = append(t.fresh, noticeOf(t.hook, to, TypeResync, "", t.gap, t.now))
	t.pos = to
}

// pick is what is tried in this round: a single probe while the receiver is
// down, else what is due, and then what is fresh and need not wait.
func (t *turn) pick() (try []*fleet.Delivery, next time.Time) {
	if t.down {
		return []*fleet.Delivery{t.pending.probe()}, time.Time{}
	}
	try, next = t.pending.due(t.now, batchSize)
	for _, d := range t.fresh {
		if !t.pending.holds(d.VMID) {
			try = append(try, d)
		}
	}
	return try, next
}

// attempt tries messages, a few at a time; those of one environment one after
// the other. When several in a row have failed the rest is left for later.
func (w *worker) attempt(ctx context.Context, t *turn) {
	t.results = make(map[*fleet.Delivery]outcome, len(t.try))
	var mu sync.Mutex
	failed := 0
	work := func(lane []*fleet.Delivery) {
		for _, d := range lane {
			mu.Lock()
			enough := failed >= downAfter
			mu.Unlock()
			if enough || ctx.Err() != nil {
				return
			}
			o := w.s.send(ctx, t.hook, d)
			mu.Lock()
			t.results[d] = o
			if failed++; o.err == "" || o.refused {
				failed = 0
			}
			mu.Unlock()
			w.s.count(o)
			if o.err != "" {
				return // what comes after it waits
			}
		}
	}
	var group sync.WaitGroup
	slots := make(chan struct{}, perHook)
	for _, lane := range lanesOf(t.try) {
		if lane[0].Type == TypeResync {
			work(lane) // before what follows the gap
			continue
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			work(lane)
		})
	}
	group.Wait()
}

func lanesOf(try []*fleet.Delivery) (lanes [][]*fleet.Delivery) {
	at := map[string]int{}
	for _, d := range try {
		i, ok := at[d.VMID]
		if !ok || d.VMID == "" {
			i = len(lanes)
			at[d.VMID] = i
			lanes = append(lanes, nil)
		}
		lanes[i] = append(lanes[i], d)
	}
	return lanes
}

// record makes durable what came of a round, in one transaction: outcomes,
// what is set aside, and the place in the log.
func (w *worker) record(ctx context.Context, t *turn) error {
	changed, moved := t.settle(), t.pos != t.hook.Cursor
	if len(changed) == 0 && t.gap == nil && (!moved || t.now.Sub(w.saved) < saveEvery) {
		w.pos, w.unsaved = t.pos, moved
		return nil
	}
	// What was sent is recorded even when this process is about to stop.
	ctx = context.WithoutCancel(ctx)
	var h fleet.Webhook
	_, err := w.s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := hooks.Get(tx, w.id)
		if !ok {
			return errHookGone
		}
		h = *row
		h.Cursor = t.pos
		t.health(&h)
		t.tell(tx, &h, changed)
		if h.Disabled != nil && row.Disabled == nil {
			h.DisabledAt = tx.Now()
			tell(tx, &h, fleet.EventWebhookDisabled, h.Disabled)
		}
		if err := hooks.Put(tx, h.ID, &h); err != nil {
			return err
		}
		return keep(tx, h.ID, changed)
	})
	if err != nil {
		return err
	}
	w.pos, w.saved, w.unsaved = t.pos, t.now, false
	for n, _ := givenUp(changed); n > 0; n-- {
		w.s.cfg.Tried("given_up")
	}
	switch {
	case h.Disabled != nil:
		w.s.log.Warn("webhook disabled", slog.String("webhook_id", w.id), slog.String("why", h.Disabled.Evidence))
	case h.Failures >= downAfter && t.hook.Failures < downAfter:
		w.s.log.Warn("webhook receiver down", slog.String("webhook_id", w.id), slog.String("receiver", shown(h.URL)), slog.Int("failures", h.Failures))
	case h.Failures == 0 && t.hook.Failures >= downAfter:
		w.s.log.Info("webhook receiver back", slog.String("webhook_id", w.id), slog.Int("pending", len(t.pending)))
	}
	return nil
}

// tell emits what the receiver will not get.
func (t *turn) tell(tx *state.Tx, h *fleet.Webhook, changed []*fleet.Delivery) {
	e := fleet.Event{EntityType: fleet.EntityWebhook, EntityID: h.ID, Owner: h.Owner}
	if g := t.gap; g != nil {
		e.Type, e.Error, e.Payload = fleet.EventWebhookResync, g.Why, events.Payload(g)
		e.Reason = &fleet.Reason{Actor: fleet.ActorWebhooks, Rule: fleet.RuleRetention, Evidence: fmt.Sprintf("events %s to %s were missed", g.From, g.To)}
		tx.Emit(e)
	}
	if n, first := givenUp(changed); n > 0 {
		e.Type, e.Error, e.Payload = fleet.EventWebhookDeliveryFailed, first.Error, nil
		e.Reason = &fleet.Reason{
			Actor: fleet.ActorWebhooks, Rule: fleet.RuleDelivery,
			Evidence: fmt.Sprintf("%d given up after %s, the first %s (%s) after %d tries", n, giveUpAfter, first.ID, first.Type, first.Attempts),
		}
		tx.Emit(e)
	}
}

// settle puts the outcomes into the deliveries and returns those that changed.
func (t *turn) settle() (changed []*fleet.Delivery) {
	at := time.Now().UTC()
	recovered := false
	for _, o := range t.results {
		recovered = recovered || t.down && (o.err == "" || o.refused)
	}
	for _, d := range t.pending {
		o, tried := t.results[d]
		if tried {
			settle(d, o, at)
		}
		expired := expire(d, at)
		// The receiver is back: what waits for it need not wait longer.
		early := recovered && d.State == fleet.DeliveryPending && d.NextAt.After(at)
		if early {
			d.NextAt = at
		}
		if tried || expired || early {
			changed = append(changed, d)
		}
	}
	for _, d := range t.fresh {
		if o, tried := t.results[d]; tried {
			settle(d, o, at)
		}
		changed = append(changed, d)
	}
	return changed
}

func givenUp(changed []*fleet.Delivery) (n int, first *fleet.Delivery) {
	for _, d := range changed {
		if d.State == fleet.DeliveryFailed {
			if n++; first == nil {
				first = d
			}
		}
	}
	return n, first
}

// health counts how the receiver does, and disables a webhook whose receiver
// has said that it wants nothing any more or has been down for too long.
func (t *turn) health(h *fleet.Webhook) {
	for _, d := range t.try {
		o, tried := t.results[d]
		switch {
		case !tried || o.cut:
		case o.err == "":
			h.Failures, h.FailingSince = 0, time.Time{}
		default:
			if h.FailingSince.IsZero() {
				h.FailingSince = t.now
			}
			if h.Failures++; o.refused {
				h.Failures = 0
			}
			if o.gone {
				h.Disabled = &fleet.Reason{Actor: fleet.ActorWebhooks, Rule: fleet.RuleDelivery, Evidence: "the receiver answered 410, which means that it wants no more"}
			}
		}
	}
	if h.RetryAt = (time.Time{}); h.Failures >= downAfter {
		h.RetryAt = t.now.Add(pause(h.Failures-downAfter+1, longestProbe))
	}
	if h.Disabled == nil && !h.FailingSince.IsZero() && t.now.Sub(h.FailingSince) >= disableAfter {
		h.Disabled = &fleet.Reason{
			Actor: fleet.ActorWebhooks, Rule: fleet.RuleDelivery,
			Evidence: "every try since " + h.FailingSince.UTC().Format(time.RFC3339) + " has failed",
		}
	}
}

// count counts a try; one that this side broke off is none.
func (s *Service) count(o outcome) {
	switch {
	case o.err == "":
		s.cfg.Tried("delivered")
	case !o.cut:
		s.cfg.Tried("failed")
	}
}
