package notify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Bounds of the engine.
const (
	batch      = 200 // events read at a time
	saveEvery  = 30 * time.Second
	maxPending = 100
	giveUp     = 24 * time.Hour
	firstPause = 30 * time.Second
	lastPause  = time.Hour
	idle       = time.Minute
	restTime   = 5 * time.Second // of a route, when the state does not take what became of a message
)

func (s *Service) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// route returns one with what is sealed of it.
func (s *Service) route(id string) (r Route, err error) {
	err = s.Store.View(func(tx *state.ReadTx) error {
		row, ok := Routes.Get(tx, id)
		if !ok {
			return records.ErrMoved
		}
		r = *row
		return nil
	})
	return r, err
}

// Run tells until ctx ends. Only the leader runs it.
func (s *Service) Run(ctx context.Context) error {
	defer s.Poster.Close()
	var watching sync.WaitGroup
	defer watching.Wait()
	e := &engine{Service: s}
	defer e.lanes.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watching.Go(func() { s.watch(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C:
		}
		next, err := e.round(ctx)
		switch {
		case errors.Is(err, fleet.ErrNotLeader), ctx.Err() != nil:
			return nil // who leads is watched elsewhere
		case err != nil:
			s.Logger.Warn("notifications were left for the next round", slog.Any("error", err))
			next = time.Now().Add(5 * time.Second)
		}
		timer.Reset(min(max(time.Until(next), 0), idle))
	}
}

// watch wakes the engine when something is committed.
func (s *Service) watch(ctx context.Context) {
	for ctx.Err() == nil {
		sub := s.Store.Watch(ctx)
		s.nudge() // something may have been committed before
		for {
			set, err := sub.Next(ctx)
			if err != nil {
				sub.Close()
				if !errors.Is(err, state.ErrLagged) {
					return
				}
				break
			}
			if len(set.Events) > 0 {
				s.nudge()
			}
		}
	}
}

// engine is one run of it.
type engine struct {
	*Service
	pos   uint64
	known bool
	saved time.Time
	lanes lanes
}

// round reads on in the log, tells what was held for long enough, and sends
// what is due. It says when there may be more.
func (e *engine) round(ctx context.Context) (next time.Time, err error) {
	if err := e.begin(ctx); err != nil {
		return next, err
	}
	for more := true; more; {
		if more, err = e.read(ctx); err != nil {
			return next, err
		}
	}
	if next, err = e.digests(ctx); err != nil {
		return next, err
	}
	due, err := e.deliver(ctx)
	if next.IsZero() || !due.IsZero() && due.Before(next) {
		next = due
	}
	if next.IsZero() {
		next = time.Now().Add(idle)
	}
	return next, err
}

// begin finds out how far the log was read. The first engine ever begins with
// what comes after the first route.
func (e *engine) begin(ctx context.Context) error {
	_, head := e.Store.Head()
	if e.known && e.pos <= head {
		return nil
	}
	found := false
	if err := e.Store.View(func(tx *state.ReadTx) error {
		if m, ok := Memories.Get(tx, engineID); ok && m.Engine != nil {
			e.pos, found = m.Engine.Cursor, true
			return nil
		}
		e.pos = head
		for _, r := range Routes.All(tx) {
			e.pos = min(e.pos, r.From)
		}
		return nil
	}); err != nil {
		return err
	}
	if found && e.pos > head { // the state was set back
		e.pos = head
	}
	e.known = true
	return nil
}

// read reads one page of the log, and makes durable what it leads to together
// with the place in the log: nothing is told twice, and nothing is left out.
func (e *engine) read(ctx context.Context) (more bool, err error) {
	page, err := e.Store.Events(ctx, state.EventQuery{After: e.pos, Limit: batch})
	if err != nil || len(page) == 0 {
		return false, err
	}
	to := page[len(page)-1].Seq
	interesting := slices.ContainsFunc(page, func(ev fleet.Event) bool {
		_, _, ok := familyOf(&ev)
		return ok || gone[ev.Type]
	})
	if interesting || time.Since(e.saved) >= saveEvery {
		var held map[Channel]int
		if _, err := e.Store.Update(ctx, func(tx *state.Tx) error {
			held = map[Channel]int{}
			silent := e.silent(tx)
			for i := range page {
				if err := e.take(tx, &page[i], held, silent); err != nil {
					return err
				}
			}
			return Memories.Put(tx, engineID, &Memory{Engine: &Engine{Cursor: to}})
		}); err != nil {
			return false, err
		}
		for c, n := range held {
			for range n {
				e.Told(string(c), "held")
			}
		}
		e.saved = time.Now()
	}
	e.pos = to
	return len(page) == batch, nil
}

// take tells the routes that want it of an event.
func (e *engine) take(tx *state.Tx, ev *fleet.Event, held map[Channel]int, silent func(*Route) bool) error {
	if gone[ev.Type] {
		if err := closeAll(tx, ev.EntityType+"/"+ev.EntityID); err != nil {
			return err
		}
	}
	f, subject, ok := familyOf(ev)
	if !ok {
		return nil
	}
	for _, r := range Routes.All(tx) {
		if r.Paused || ev.Seq <= r.From || !concerns(tx, r, ev) || !wants(r.Events, f, ev.Type) || silent(r) {
			continue
		}
		id := r.ID + "/" + f.name + "/" + subject
		k := Kept{Route: r.ID, Subject: subject}
		if m, ok := Memories.Get(tx, id); ok && m.Damp != nil {
			k = *m.Damp
		}
		next, send := k.Add(f.sort, r.limit(), tx.Now())
		if send && waiting(tx, r.ID) >= maxPending {
			next, send = k.hold(f.sort, tx.Now()), false
		}
		if !send && next.Held == k.Held {
			continue // the end of what nobody was told of
		}
		next.Type, next.Text, next.Title = ev.Type, events.Sentence(ev), titleOf(tx, ev)
		k.Damp = next
		if !send {
			held[r.Channel]++
		} else if err := queue(tx, r, Message{Sort: f.sort, Type: ev.Type, Subject: subject, Title: next.Title + ": " + next.Text, Text: next.Text, At: ev.At}); err != nil {
			return err
		}
		if err := Memories.Put(tx, id, &Memory{Damp: &k}); err != nil {
			return err
		}
	}
	return nil
}

// closeAll ends what is remembered of problems of a subject that is gone.
func closeAll(tx *state.Tx, subject string) error {
	for _, r := range Routes.All(tx) {
		for _, family := range families() {
			id := r.ID + "/" + family + "/" + subject
			if m, ok := Memories.Get(tx, id); ok && m.Damp != nil && m.Damp.Open {
				k := *m.Damp
				k.Open = false
				if err := Memories.Put(tx, id, &Memory{Damp: &k}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func waiting(tx state.Reader, route string) (n int) {
	for range Messages.Prefix(tx, route+"/") {
		n++
	}
	return n
}

func queue(tx *state.Tx, r *Route, m Message) error {
	m.ID, m.Route, m.NextAt = strings.ToLower(uid.New()), r.ID, tx.Now()
	m.Title = line(m.Title)
	m.Title = strings.ToValidUTF8(m.Title[:min(len(m.Title), 200)], "")
	return Messages.Put(tx, r.ID+"/"+m.ID, &m)
}

// concerns reports whether an event is within the scope of a route.
func concerns(tx state.Reader, r *Route, ev *fleet.Event) bool {
	switch r.Scope {
	case ScopeInstallation:
		return true
	case ScopePlayer:
		return ev.Owner != "" && ev.Owner == r.Owner && ev.EntityType != fleet.EntityMarquee
	}
	switch ev.EntityType {
	case fleet.EntityMarquee:
		return ev.EntityID == string(r.Marquee)
	case fleet.EntityPlayground:
		p, ok := records.Playgrounds.Get(tx, ev.EntityID)
		return ok && p.Marquee == r.Marquee
	}
	return false
}

// titleOf names the subject as people do.
func titleOf(tx state.Reader, ev *fleet.Event) string {
	switch ev.EntityType {
	case fleet.EntityMarquee:
		if m, ok := records.Marquees.Get(tx, ev.EntityID); ok {
			return "marquee " + m.Name
		}
	case fleet.EntityPlayground:
		if p, ok := records.Playgrounds.Get(tx, ev.EntityID); ok {
			if p.Trick != nil {
				return "trick " + p.Name
			}
			return "playground " + p.Name
		}
	}
	return strings.ReplaceAll(ev.EntityType, "_", " ") + " " + ev.EntityID
}

// digests tells, in one message each, what was held for a whole window, and
// forgets what is over.
func (e *engine) digests(ctx context.Context) (next time.Time, err error) {
	work := false
	look := func(tx state.Reader, now time.Time, do func(id string, k Kept, r *Route) error) error {
		room := map[string]int{} // in the queues of routes
		for id, m := range Memories.All(tx) {
			if m.Damp == nil {
				continue
			}
			r, ok := Routes.Get(tx, m.Damp.Route)
			if !ok {
				continue
			}
			_, send := m.Damp.Digest(r.limit(), now)
			if send {
				if _, known := room[r.ID]; !known {
					room[r.ID] = maxPending - waiting(tx, r.ID)
				}
				if room[r.ID]--; room[r.ID] < 0 {
					continue // when its receiver has taken what waits
				}
			}
			if send || m.Damp.Stale(r.limit(), now) {
				if err := do(id, *m.Damp, r); err != nil {
					return err
				}
			} else if at := m.Damp.Due(r.limit()); !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
		return nil
	}
	if err := e.Store.View(func(tx *state.ReadTx) error {
		return look(tx, time.Now(), func(string, Kept, *Route) error {
			work = true
			return nil
		})
	}); err != nil || !work {
		return next, err
	}
	_, err = e.Store.Update(ctx, func(tx *state.Tx) error {
		drop := []string{}
		put := map[string]Kept{}
		if err := look(tx, tx.Now(), func(id string, k Kept, r *Route) error {
			d, send := k.Digest(r.limit(), tx.Now())
			if !send {
				drop = append(drop, id)
				return nil
			}
			m := Message{
				Sort: "digest", Type: k.Type, Subject: k.Subject, Held: k.Held, At: tx.Now(), Title: fmt.Sprintf("%s: %d more messages", k.Title, k.Held),
				Text: fmt.Sprintf("In the last %s there were %d more messages like those before. The last one: %s", r.Window, k.Held, k.Text),
			}
			k.Damp = d
			put[id] = k
			return queue(tx, r, m)
		}); err != nil {
			return err
		}
		for id, k := range put {
			if err := Memories.Put(tx, id, &Memory{Damp: &k}); err != nil {
				return err
			}
		}
		for _, id := range drop {
			if err := Memories.Delete(tx, id); err != nil {
				return err
			}
		}
		return nil
	})
	return next, err
}

// deliver begins to send what is due: one lane for each route, a few at a time,
// and fewer of one owner, so that whose receivers are slow or dead keeps nobody
// else waiting. A lane that ends asks for another round.
func (e *engine) deliver(ctx context.Context) (next time.Time, err error) {
	free := e.lanes.free() // before what waits is read: a lane may end meanwhile
	lanes := map[string][]Message{}
	routes := map[string]Route{}
	now := time.Now()
	if err := e.Store.View(func(tx *state.ReadTx) error {
		silent := e.silent(tx)
		for _, m := range Messages.All(tx) {
			r, ok := Routes.Get(tx, m.Route)
			if !ok || r.Paused || silent(r) || !free(r.ID) {
				continue
			}
			routes[r.ID], lanes[r.ID] = *r, append(lanes[r.ID], *m)
		}
		return nil
	}); err != nil {
		return next, err
	}
	for id, lane := range lanes {
		at := lane[0].NextAt
		if rest := e.lanes.rest(id); rest.After(at) {
			at = rest
		}
		if at.After(now) {
			if next.IsZero() || at.Before(next) {
				next = at
			}
			continue
		}
		r := routes[id]
		e.lanes.begin(r, func() (rest time.Time) {
			err := e.lane(ctx, r, lane)
			if err != nil {
				rest = time.Now().Add(restTime)
				if ctx.Err() == nil && !errors.Is(err, fleet.ErrNotLeader) {
					e.Logger.Warn("what became of a notification was not written down", slog.String("route", r.ID), slog.Any("error", err))
				}
			}
			return rest
		}, e.nudge)
	}
	return next, nil
}

// lane sends what waits for one route, oldest first, until one fails or others
// are to have their turn.
func (e *engine) lane(ctx context.Context, r Route, lane []Message) error {
	began := time.Now()
	for _, m := range lane {
		failed := e.try(ctx, r, m)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it ends with its server, and is tried again by the next
		}
		if err := e.settle(context.WithoutCancel(ctx), r, m, failed); err != nil || failed != nil {
			return err
		}
		if time.Since(began) >= SendTime {
			return nil
		}
	}
	return nil
}

// pause is how long to wait after so many tries.
func pause(tries int) time.Duration {
	d := firstPause
	for ; tries > 1 && d < lastPause; tries-- {
		d *= 2
	}
	return min(d, lastPause)
}

// settle writes down what became of a try.
func (e *engine) settle(ctx context.Context, r Route, m Message, failed error) error {
	result := "sent"
	_, err := e.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := Routes.Get(tx, r.ID)
		key := r.ID + "/" + m.ID
		if _, waits := Messages.Get(tx, key); !ok || !waits {
			return nil
		}
		now := *row
		if failed == nil {
			now.Sent, now.LastSent, now.Error = now.Sent+1, tx.Now(), ""
			return errors.Join(Messages.Delete(tx, key), Routes.Put(tx, r.ID, &now))
		}
		result, now.Error = "failed", failed.Error()
		m.Tries, m.Error, m.NextAt = m.Tries+1, failed.Error(), tx.Now().Add(pause(m.Tries+1))
		if tx.Now().Sub(m.At) < giveUp && fleet.CodeOf(failed) != fleet.CodeForbidden {
			return errors.Join(Messages.Put(tx, key, &m), Routes.Put(tx, r.ID, &now))
		}
		result = "given_up"
		now.GivenUp++
		tell(tx, &now, fleet.Reason{Actor: fleet.ActorNotifier, Rule: fleet.RuleDelivery, Evidence: cmp.Or(m.Title, m.Type)}, fleet.EventNotificationGivenUp, m.Error)
		return errors.Join(Messages.Delete(tx, key), Routes.Put(tx, r.ID, &now))
	})
	e.Told(string(r.Channel), result)
	return err
}
