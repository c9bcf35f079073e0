package branch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
)

// soonest is when a playground is looked at again whose branch was to be asked for
// while something was at work on it.
const soonest = 5 * time.Second

// follow is the chore of going forward, advanceAgain and advanceLast how long one
// waits that could not, unless its branch moves on.
const (
	follow       = "follow"
	advanceAgain = time.Minute
	advanceLast  = 10 * time.Minute
)

// Phase is the part of a pass in which branches are followed: servers that are due
// are asked in the background, and what they said last is acted on.
func (f *Follower) Phase() loop.Phase { return loop.Phase{Name: "branches", Run: f.pass} }

func (f *Follower) pass(ctx context.Context, t *loop.Turn) error {
	if err := f.tidy(t.In.Now); err != nil {
		return err
	}
	left := f.Policy.RolloutsPerPass
	free := t.Free()
	for _, row := range t.Rows {
		if row.Source.IsZero() || slices.Contains(free, row) {
			continue
		}
		if !t.Under(follow, row.ID) {
			left--
		}
		if heard := f.Heard(row.ID); heard.At.IsZero() { // somebody waits for it to be asked for
			t.Soon(soonest)
		}
	}
	var due []records.Playground
	var behind []loop.Owed
	heads := map[model.PlaygroundID]Heard{}
	for _, row := range free {
		if row.Source.IsZero() {
			continue
		}
		heard := f.Heard(row.ID)
		if !t.In.Now.Before(heard.Due()) {
			due = append(due, *row)
		}
		s := sight(t, row, heard, f.Policy)
		switch todo := Decide(s); {
		case todo.Keep:
		case todo.Advance:
			heads[row.ID] = heard
			behind = append(behind, loop.Owed{Row: row, What: fmt.Sprint(heard.Head, row.Source.Force)})
		case todo.Problem != row.Source.Problem || todo.Problem != "" && todo.Why != row.Source.Why:
			if err := f.note(ctx, row, todo, heard.Head); err != nil {
				return err
			}
		}
	}
	if t.Few(loop.Chore{Name: follow, Most: left, First: advanceAgain, Last: advanceLast, Again: true, Do: func(ctx context.Context, was records.Playground) (bool, error) {
		return f.advance(ctx, t.Site, was, heads[was.ID])
	}}, behind) > 0 {
		t.Soon(f.Policy.Period / 2)
	}
	f.ask(t, due)
	return nil
}

// tidyEvery is how often what was heard of playgrounds that are gone is dropped.
const tidyEvery = time.Hour

func (f *Follower) tidy(now time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.tidied) < tidyEvery {
		return nil
	}
	f.tidied = now
	return f.Store.View(func(tx *state.ReadTx) error {
		for id := range f.heard {
			if _, there := records.Playgrounds.Get(tx, string(id)); !there {
				delete(f.heard, id)
			}
		}
		return nil
	})
}

func sight(t *loop.Turn, row *records.Playground, heard Heard, policy model.Policy) Sight {
	look := t.In.Look.Project(row.Project)
	s := Sight{Now: t.In.Now, Row: *row, Heard: heard, Policy: policy}
	s.Dirt, s.DirtWhy = look.Dirt()
	list, _ := look.Checkouts()
	for _, c := range list {
		s.Present = s.Present || c.Name == row.Source.Checkout
	}
	return s
}

// Heard is what is remembered of the server's last answer.
func (f *Follower) Heard(id model.PlaygroundID) Heard {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.heard[id]
}

// Check has the servers of these playgrounds asked at once.
func (f *Follower) Check(rows ...records.Playground) {
	marquees := map[model.MarqueeID]bool{}
	f.mu.Lock()
	for _, p := range rows {
		h := f.heard[p.ID]
		h.At, h.Failures, h.asked = time.Time{}, 0, true
		f.heard[p.ID] = h
		marquees[p.Marquee] = true
	}
	f.mu.Unlock()
	for m := range marquees {
		f.Kick(m)
	}
}

// note writes a problem, or that there is none any more.
func (f *Follower) note(ctx context.Context, was *records.Playground, todo Follow, head string) error {
	_, err := f.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := records.Playgrounds.Get(tx, string(was.ID))
		if !ok || row.Revision != was.Revision {
			return nil
		}
		p := *row
		if todo.Problem == "" {
			f.mended(tx, &p)
		} else {
			f.trouble(tx, &p, todo.Problem, todo.Why, head)
		}
		return records.PutPlayground(tx, p)
	})
	return err
}

// still is asked before each thing that is done about a branch: the playground is
// up, nobody asked for anything else, and it follows the same branch.
func still(was records.Playground) func(*records.Playground) error {
	return func(p *records.Playground) error {
		if p.State != model.StateRunning && p.State != model.StateError || p.Intent != model.IntentUp ||
			p.Source.Repository != was.Source.Repository || p.Source.Branch != was.Source.Branch || p.Source.Checkout != was.Source.Checkout {
			return records.ErrMoved
		}
		return nil
	}
}

// advance has the checkout go forward, reads what it defines, and asks for a
// rollout if that is something new. Whatever is in the way is noted, and what
// runs goes on. False: it is to be tried again, though the branch does not move.
func (f *Follower) advance(ctx context.Context, site work.Site, was records.Playground, heard Heard) (done bool, err error) {
	t := f.Worker.Task(site, was.ID, work.RuleBranch, still(was))
	r, err := f.fetch(ctx, t)
	if err != nil {
		return false, err
	}
	if r.problem != "" {
		return false, t.Change(ctx, func(tx *state.Tx, p *records.Playground) error {
			f.trouble(tx, p, r.problem, r.why, heard.Head)
			return nil
		})
	}
	d, err := f.read(ctx, was)
	if err != nil {
		if refused := refusal(err); refused != nil {
			return true, t.Change(ctx, func(tx *state.Tx, p *records.Playground) error {
				p.Source.Head, p.Source.Refused, p.Source.Force = d.commit, d.commit, false
				f.trouble(tx, p, records.ProblemRefused, refused.Error(), d.commit)
				return nil
			})
		}
		return false, err
	}
	made, err := records.Make(f.Sealer, &was, d.version)
	if err != nil {
		return false, err
	}
	begin := false
	err = t.Change(ctx, func(tx *state.Tx, p *records.Playground) error {
		begin = false
		if err := f.adopt(tx, p, made, d.commit); err != nil {
			return refuse(err)
		}
		if p.State == model.StateRunning && p.Desired == p.Applied {
			return nil
		}
		q, err := p.Request(model.ActionRollout, tx.Now())
		if err != nil {
			return err
		}
		records.Tell(tx, p, records.Note{
			Type: fleet.EventPlaygroundRequested, Reason: records.ByLoop(fleet.RuleSettled, "branch "+p.Source.Branch+" at "+d.commit),
			Payload: events.PlaygroundChange{From: string(p.State), To: string(q.State), Action: string(model.ActionRollout), Rule: string(work.RuleBranch), Epoch: site.Epoch},
		})
		p.Playground, p.Job, p.Step = q, "", ""
		begin = true
		return nil
	})
	if refused := refusal(err); refused != nil { // it has no room, or a name is another's
		return false, t.Change(ctx, func(tx *state.Tx, p *records.Playground) error {
			f.trouble(tx, p, records.ProblemRefused, refused.Error(), heard.Head)
			return nil
		})
	}
	if err == nil && begin {
		f.Begin(was.Marquee, was.ID)
	}
	return err == nil, err
}

// Branches lists the branches of a repository, as a marquee sees them.
func (f *Follower) Branches(ctx context.Context, owner, marquee string, src records.Source) ([]string, error) {
	var m records.Marquee
	var payload []byte
	src.Checkout, src.Branch, src.Depth = "all", "main", 1
	if err := f.Store.View(func(tx *state.ReadTx) error {
		row, err := f.marquee(tx, marquee)
		if err != nil {
			return err
		}
		m = *row
		payload, err = f.payload(tx, &records.Playground{Owner: owner, Source: src}, nil)
		return err
	}); err != nil {
		return nil, err
	}
	return f.Host(m).Branches(ctx, payload)
}
