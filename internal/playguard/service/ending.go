package service

import (
	"context"
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
)

// Find returns a playground that the caller sees, by id or name.
func Find(ctx context.Context, tx state.Reader, id string) (*records.Playground, error) {
	return findPlayground(ctx, tx, id)
}

// FindMarquee returns a marquee by id or name.
func FindMarquee(tx state.Reader, id string) (*records.Marquee, error) { return findMarquee(tx, id) }

// Amend changes a playground that the caller sees.
func Amend(ctx context.Context, s *Service, id string, fn func(tx *state.Tx, p *records.Playground) error) (records.Playground, error) {
	return s.changePlayground(ctx, id, fn)
}

// View is a record as people see it.
func View(p *records.Playground) Playground { return view(p) }

// Caller is who asks, and the reason that events give for what is done.
func Caller(ctx context.Context) (owner string, by fleet.Reason) {
	c := who(ctx)
	return c.owner, c.reason("")
}

// life checks what an up says about the end of a playground.
func life(req UpRequest, existing *records.Playground) error {
	if req.Trick != nil && existing != nil || existing != nil && existing.Trick != nil {
		return fleet.Errorf(fleet.CodeConflict, "there is a playground %s, and a trick is begun once", req.Name).
			With(fleet.DetailReason, "exists").With(fleet.DetailRemedy, "take another name, or remove it first")
	}
	if req.Expires == "" {
		return nil
	}
	if req.Trick != nil {
		return fleet.Invalid("expires", "none for a trick", "give it a deadline", "says nothing to a trick")
	}
	_, err := model.ParseExpiry(req.Expires, time.Now())
	return err
}

// ending writes when a playground ends: as it was asked for, or as its marquee
// does with new ones.
func (d *draft) ending(p *records.Playground, now time.Time) (err error) {
	switch {
	case d.trick != nil:
		t := *d.trick
		t.Since, t.Attempt = now, 1
		p.Trick, p.Intent = &t, model.IntentJob
	case d.expires != "":
		p.Expiry, err = model.ParseExpiry(d.expires, now)
		unpark(p, now)
	case d.existing == nil && d.marquee.DefaultExpiry > 0:
		p.Expiry = model.Until(now.Add(d.marquee.DefaultExpiry), now)
	}
	return err
}

// unpark returns what was parked only because its time was over.
func unpark(p *records.Playground, now time.Time) {
	if p.State == model.StateHasChanges && (p.Expiry.IsZero() || p.Expiry.At.After(now)) {
		p.State, p.StateSince, p.Reason, p.Attention = model.StateRunning, now, "it was given more time", ""
	}
}

// Extend gives a playground more time: a duration counts from its end or from
// now, whichever is later; a time or never replaces it.
func Extend(ctx context.Context, s *Service, id, expires string) (Playground, error) {
	if expires == "" {
		return Playground{}, fleet.Invalid("expires", "a duration, a time or never", "say how much longer", "is missing")
	}
	p, err := s.changePlayground(ctx, id, func(tx *state.Tx, p *records.Playground) error {
		if err := extendable(p); err != nil {
			return err
		}
		next, err := model.ParseExpiry(expires, tx.Now())
		if err != nil {
			return err
		}
		if by, err := model.ParseLife(expires); err == nil && !p.Expiry.IsZero() {
			next = p.Expiry.Extended(by, tx.Now())
		}
		from := p.State
		p.Expiry = next
		unpark(p, tx.Now())
		return extended(ctx, tx, p, from)
	})
	if err != nil {
		return Playground{}, err
	}
	s.Loop.Kick(p.Marquee)
	return view(&p), nil
}

func extendable(p *records.Playground) error {
	switch {
	case p.Trick != nil:
		return fleet.Errorf(fleet.CodeConflict, "a trick has a deadline and no expiry").With(fleet.DetailReason, "trick")
	case p.Op.Kind == model.OpReclaim, p.State == model.StateDestroying:
		return fleet.Errorf(fleet.CodeConflict, "it is being taken away right now").With(fleet.DetailReason, "state")
	case p.State == model.StateStopping, p.State == model.StateStopped, p.State == model.StateCompleted:
		return fleet.Errorf(fleet.CodeConflict, "extend is not possible while the playground is %s, which does not expire", p.State).
			With(fleet.DetailReason, "state").With(fleet.DetailRemedy, "start it first")
	}
	return nil
}

func extended(ctx context.Context, tx *state.Tx, p *records.Playground, from model.State) error {
	if p.Expiry.At.After(tx.Now().Add(model.MaxLife)) {
		return fleet.Invalid("expires", "5 years from now", "say never", "would be %s", p.Expiry.At.UTC().Format(time.RFC3339))
	}
	by := who(ctx).reason("")
	records.Tell(tx, p, records.Note{Type: fleet.EventPlaygroundExtended, Reason: by, Payload: events.PlaygroundEnd{At: p.Expiry.At}})
	if from != p.State {
		records.Tell(tx, p, records.Note{Type: fleet.EventPlaygroundStateChanged, Reason: by, Payload: events.PlaygroundChange{From: string(from), To: string(p.State), Action: "extend"}})
	}
	return nil
}

// SetDefaultExpiry says when new playgrounds of a marquee end: a duration, or
// never. Those that are there keep theirs.
func SetDefaultExpiry(ctx context.Context, s *Service, id, life string) (Marquee, error) {
	var d time.Duration
	if life != model.Never {
		e, err := model.ParseExpiry(life, time.Now())
		if err != nil {
			return Marquee{}, err
		}
		if d, err = model.ParseLife(life); err != nil {
			return Marquee{}, fleet.Invalid("default_expiry", "a duration or never", "", "%s is a time", e.At.Format(time.RFC3339))
		}
	}
	return s.changeMarquee(ctx, id, records.Note{Type: fleet.EventMarqueeUpdated, Payload: map[string]string{"default_expiry": life}}, func(_ *state.Tx, m *records.Marquee) error {
		m.DefaultExpiry = d
		return nil
	})
}

// There counts what a marquee carries: tricks that are done have left it.
func There(tx state.Reader, m model.MarqueeID) (n int) {
	for _, p := range records.Of(tx, m) {
		if p.Trick == nil || p.State != model.StateCompleted {
			n++
		}
	}
	return n
}

// Room refuses a playground more than an owner or a marquee may have.
func Room(tx state.Reader, owner string, m *records.Marquee) error {
	count := 0
	for _, p := range records.Playgrounds.All(tx) {
		if p.Owner == owner {
			count++
		}
	}
	switch {
	case count >= MaxPerOwner:
		return fleet.Errorf(fleet.CodeConflict, "%s has %d playgrounds", owner, count).
			With(fleet.DetailLimit, fmt.Sprint(MaxPerOwner)).With(fleet.DetailRemedy, "destroy some first: fuse playground ls lists them")
	case There(tx, m.ID) >= MaxPerMarquee:
		return fleet.Errorf(fleet.CodeConflict, "marquee %s has as many playgrounds as it may", m.Name).
			With(fleet.DetailLimit, fmt.Sprint(MaxPerMarquee)).With(fleet.DetailRemedy, "destroy some there first, or take another marquee")
	}
	return nil
}
