package service

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
)

// Explain says why a playground is as it is, and what happens next.
func (s *Service) Explain(ctx context.Context, id string) (e Explanation, err error) {
	var row records.Playground
	var m records.Marquee
	err = s.Store.View(func(tx *state.ReadTx) error {
		p, err := findPlayground(ctx, tx, id)
		if err != nil {
			return err
		}
		row = *p
		if found, ok := records.Marquees.Get(tx, string(p.Marquee)); ok {
			m = *found
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	e.Playground = view(&row)
	if sight, ok := s.Loop.Sight(row.Marquee); ok {
		r := report(sight)
		e.Look = &r
		e.show(row, sight)
	}
	for _, d := range s.Loop.Decisions(row.ID) {
		e.Decisions = append(e.Decisions, decision(d))
	}
	e.Next = outlook(s, row, m)
	return e, nil
}

// show takes what the last look shows of the playground.
func (e *Explanation) show(row records.Playground, sight loop.Sight) {
	look := sight.Look.Project(row.Project)
	containers, seen := look.Containers()
	if !seen {
		return
	}
	run := decide.Assess(row.Services, containers)
	e.Condition = string(run.Condition)
	digests := map[string]string{}
	for _, s := range row.Services {
		digests[s.Name] = s.Digest
	}
	for _, c := range containers {
		e.Containers = append(e.Containers, ContainerView{
			Service: c.Service, Name: c.Name, State: c.State, Health: c.Health, Exit: c.Exit, Outdated: c.Digest != digests[c.Service],
		})
	}
	dirt, why := look.Dirt()
	e.Dirt, e.DirtWhy = dirt.String(), why
}

func decision(d loop.Decision) Decision {
	return Decision{First: d.First, Last: d.Last, Count: d.Count, Verdict: d.Verdict, Rule: d.Rule, Act: d.Act, Why: d.Why, Epoch: d.Epoch, Guard: d.Guard}
}

// outlook says what is due, and what it would take for something to happen.
func outlook(s *Service, p records.Playground, m records.Marquee) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	pol, now := s.Policy, time.Now()
	switch {
	case m.Admin != model.AdminActive:
		say("Nothing: a person took marquee %s out of the loop (%s). fuse marquee return %s takes it back.", m.Name, m.AdminWhy, m.Name)
		return out
	case m.Reach == model.ReachQuarantined:
		say("Marquee %s has not been seen since before %s and is only probed; one clean look returns it, and the look after that acts.", m.Name, m.ReachSince.UTC().Format(time.RFC3339))
	}
	if due := s.Loop.Due(m.ID); !due.IsZero() {
		say("The marquee is looked at next within %s.", max(due.Sub(now), time.Second).Round(time.Second))
	} else {
		say("This server does not look at marquees now; the one that leads does.")
	}
	if s.Loop.Working(p.Marquee, p.ID) {
		say("A job is at work on it%s; nothing else begins before that has ended.", step(p.Step))
	} else if !p.Op.IsZero() {
		say("Operation %s (%s) was begun on the marquee %s ago; its end is read before anything else is decided.", p.Op.Kind, p.Op.ID, now.Sub(p.Op.Started).Round(time.Second))
	}
	if p.Strikes.Count == 1 {
		say("One look showed %s; if another complete look, at least %s later, shows it too, it is acted on.", p.Strikes.Kind, pol.StrikeGap)
	}
	if wait := p.AppliedAt.Add(pol.ApplyGrace).Sub(now); wait > 0 && p.State == model.StateRunning {
		say("Nothing is repaired for another %s: it was brought up just now.", wait.Round(time.Second))
	}
	if wait := p.Repair.Until.Sub(now); wait > 0 {
		say("A repair was begun (%s); the next one may begin in %s.", p.Repair.Reason, wait.Round(time.Second))
	}
	if n := p.Repairs.Within(now, pol.RepairWindow); n > 0 {
		say("%d of %d repairs within %s are used.", n, pol.RepairTries, pol.RepairWindow)
	}
	var rolled []string
	for _, v := range p.Services {
		if v.Rolled {
			rolled = append(rolled, v.Name)
		}
	}
	if len(rolled) > 0 {
		say("Marked zero_downtime: %s. A new version runs beside the old one until it is up; else the old one stays.", strings.Join(rolled, ", "))
	}
	if !p.Expiry.IsZero() {
		out = append(out, ending(p, pol, now)...)
	}
	switch p.State {
	case model.StateError:
		if p.Failure.Temporary() {
			say("It is tried again by itself, each time after a longer pause; fuse playground rollout tries at once.")
		} else {
			say("It is not tried again by itself: correct what it says and run fuse playground up.")
		}
	case model.StateStopped:
		say("It stays stopped until somebody starts it.")
	case model.StateDestroying:
		say("It is destroyed again and again until two looks show nothing of it; then its record goes.")
	}
	return out
}

// ending says what the end of a playground's time brings.
func ending(p records.Playground, pol model.Policy, now time.Time) []string {
	const work = "while its checkouts hold work that is nowhere else, or nobody can tell, it stays as it is"
	at := p.Expiry.At
	if ends := p.Expiry.Ends(pol); ends.After(at) {
		at = ends
	}
	switch {
	case p.State == model.StateHasChanges:
		return []string{"Its time is over, and it waits for the work in its checkouts: it goes by itself once that is committed, pushed and clean; fuse playground extend gives it more time."}
	case p.State != model.StateRunning:
		return nil
	case now.Before(at):
		return []string{fmt.Sprintf("It ends in %s, at %s; %s.", at.Sub(now).Round(time.Second), at.UTC().Format(time.RFC3339), work)}
	}
	return []string{fmt.Sprintf("Its time is over since %s: a look or two take it away; %s.", at.UTC().Format(time.RFC3339), work)}
}

func step(name string) string {
	if name == "" {
		return ""
	}
	return " (" + name + ")"
}
