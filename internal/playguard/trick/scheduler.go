package trick

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/state"
)

// Bounds of the scheduler.
const (
	longest  = 30 * time.Second // between two rounds: tricks end without a word to it
	shortest = time.Second
	// startTries is how often a run that cannot be begun is tried, a round apart,
	// before it counts as missed.
	startTries = 10
)

func (s *Service) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// RunSchedules starts what is due until ctx ends. Only the leader runs it.
func (s *Service) RunSchedules(ctx context.Context) error {
	timer := time.NewTimer(shortest)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C:
		}
		next := s.round(ctx)
		timer.Reset(min(max(time.Until(next), shortest), longest))
	}
}

// round asks every schedule what it is to do, and says when to ask again.
func (s *Service) round(ctx context.Context) (next time.Time) {
	next = time.Now().Add(longest)
	var all []Schedule
	plans := map[string]Plan{}
	if err := s.Store.View(func(tx *state.ReadTx) error {
		acting := s.Acting(tx)
		for _, sch := range Schedules.All(tx) {
			f := facts(tx, sch, time.Now())
			f.Held = !acting(sch.Owner, fleet.RoleUser)
			p := Decide(f)
			if !p.Next.IsZero() && p.Next.Before(next) {
				next = p.Next
			}
			all, plans[sch.ID] = append(all, *sch), p
		}
		return nil
	}); err != nil {
		s.Logger.Warn("schedules could not be read", slog.Any("error", err))
		return next
	}
	for _, sch := range all {
		if err := s.carryOut(ctx, sch, plans[sch.ID]); err != nil && ctx.Err() == nil && !errors.Is(err, fleet.ErrNotLeader) && !errors.Is(err, records.ErrMoved) {
			s.Logger.Warn("a schedule was left for the next round", slog.String("schedule", sch.ID), slog.Any("error", err))
		}
	}
	return next
}

// whyHeld is the trouble of a schedule in whose owner's name nobody can act.
const whyHeld = "no API key acts for its owner any more; it goes on with one that does"

var byClock = fleet.Reason{Actor: fleet.ActorScheduler, Rule: fleet.RuleRequested}

// carryOut does what was decided for a schedule. What it started is found by
// its name, so a round that is cut starts nothing twice.
func (s *Service) carryOut(ctx context.Context, sch Schedule, p Plan) error {
	ctx = asOwner(ctx, sch.Owner)
	switch {
	case p.Invalid != nil:
		return s.note(ctx, sch, func(tx *state.Tx, now *Schedule) {
			now.Paused, now.Trouble = true, p.Invalid.Error()
			tell(tx, now, byClock, fleet.EventTrickScheduleFailed, now.Trouble, nil)
		})
	case p.Held != !sch.Held.IsZero():
		if err := s.hold(ctx, sch, p.Held); err != nil {
			return err
		}
	case !p.Waits.IsZero() && !p.Waits.Equal(sch.Waits):
		if err := s.note(ctx, sch, func(tx *state.Tx, now *Schedule) {
			now.Waits = p.Waits
			tell(tx, now, byClock, fleet.EventTrickScheduleSkipped, "", events.TrickRun{Slot: p.Waits})
		}); err != nil {
			return err
		}
	case p.Fire.IsZero() && p.Missed > 0 && p.Waits.IsZero():
		if err := s.note(ctx, sch, func(tx *state.Tx, now *Schedule) {
			now.Last, now.Waits, now.Tries = p.Until, time.Time{}, 0
			tell(tx, now, byClock, fleet.EventTrickScheduleMissed, "", events.TrickRun{Slot: p.Until, Missed: p.Missed})
		}); err != nil {
			return err
		}
	case !p.Fire.IsZero():
		if err := s.fire(ctx, sch, p); err != nil {
			return err
		}
	}
	return each(ctx, p.Remove, s.Remove)
}

// each does something with every one of them, whatever becomes of the others. One
// that is gone is no failure.
func each(ctx context.Context, ids []model.PlaygroundID, do func(ctx context.Context, id string) (service.Playground, error)) error {
	var failed []error
	for _, id := range ids {
		if _, err := do(ctx, string(id)); err != nil && fleet.CodeOf(err) != fleet.CodeNotFound {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// hold writes that a schedule begins nothing, since whoever made it may not any
// more, or that it goes on with what is due from now on.
func (s *Service) hold(ctx context.Context, sch Schedule, held bool) error {
	return s.note(ctx, sch, func(tx *state.Tx, now *Schedule) {
		now.Held, now.Waits, now.Trouble, now.Tries = time.Time{}, time.Time{}, "", 0
		if held {
			now.Held, now.Trouble = tx.Now(), whyHeld
			tell(tx, now, byClock, fleet.EventTrickScheduleFailed, now.Trouble, nil)
			return
		}
		now.Last = tx.Now()
		tell(tx, now, byClock, fleet.EventTrickScheduleUpdated, "", map[string]bool{"held": false})
	})
}

func (s *Service) fire(ctx context.Context, sch Schedule, p Plan) error {
	var made service.Playground
	err := each(ctx, p.Cancel, s.Cancel)
	if err == nil {
		made, err = s.start(ctx, sch, p.Fire)
	}
	if exists(err) { // a round before this one was cut, or the name is somebody else's
		if old, e := s.Get(ctx, runName(sch.Name, p.Fire)); e == nil && old.Trick.Schedule == sch.ID {
			made, err = old, nil
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, fleet.ErrNotLeader) || ctx.Err() != nil:
		return err
	default:
		return s.note(ctx, sch, func(tx *state.Tx, now *Schedule) {
			if now.Trouble = err.Error(); now.Tries == 0 {
				tell(tx, now, byClock, fleet.EventTrickScheduleFailed, now.Trouble, events.TrickRun{Slot: p.Fire})
			}
			if now.Tries++; now.Tries >= startTries {
				now.Last, now.Waits, now.Tries = p.Fire, time.Time{}, 0
				tell(tx, now, byClock, fleet.EventTrickScheduleMissed, "", events.TrickRun{Slot: p.Fire, Missed: p.Missed + 1})
			}
		})
	}
	return s.note(ctx, sch, func(tx *state.Tx, now *Schedule) {
		now.Last, now.Waits, now.Fired, now.Trick, now.Trouble, now.Tries = p.Fire, time.Time{}, p.Fire, string(made.ID), "", 0
		if p.Missed > 0 {
			tell(tx, now, byClock, fleet.EventTrickScheduleMissed, "", events.TrickRun{Slot: p.Fire, Missed: p.Missed})
		}
		tell(tx, now, byClock, fleet.EventTrickScheduleFired, "", events.TrickRun{Slot: p.Fire, Trick: string(made.ID)})
	})
}

// note writes to a schedule that is as it was read.
func (s *Service) note(ctx context.Context, sch Schedule, do func(tx *state.Tx, now *Schedule)) error {
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := Schedules.Get(tx, sch.ID)
		if !ok || row.Revision != sch.Revision {
			return records.ErrMoved
		}
		now := *row
		do(tx, &now)
		return put(tx, now)
	})
	return err
}
