package sweeper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/sweep"
	"github.com/fusevm/fuse/internal/state"
)

// Bounds of an arming.
const (
	DefaultArming = 7 * 24 * time.Hour
	MaxArming     = 30 * 24 * time.Hour
	maxWhy        = 300
)

// Status is the sweep on a marquee as people see it.
type Status struct {
	Marquee  model.MarqueeID
	Name     string
	Armed    bool
	Sweep    model.Sweep
	HaltedAt string          // another marquee that stopped the sweep everywhere
	At       time.Time       // of Findings; zero: this server has not looked yet
	Findings []sweep.Finding // of the last pass
	Keep     time.Duration   // how long what is set aside is kept
}

// Arm lets orphans on a marquee be set aside for a time.
type Arm struct {
	For   time.Duration // zero: DefaultArming
	Why   string        // needed
	Share int           // percent of the host's projects that may be orphans; zero: sweep.DefaultShare
}

// Status tells of the sweep on a marquee, by id or name.
func (s *Sweeper) Status(_ context.Context, id string) (out Status, err error) {
	err = s.Store.View(func(tx *state.ReadTx) error {
		m, err := find(tx, id)
		if err != nil {
			return err
		}
		a := m.Sweep.Arming
		out = Status{
			Marquee: m.ID, Name: m.Name, Sweep: m.Sweep, Armed: !a.At.IsZero() && time.Now().Before(a.Until), Keep: s.Policy.Keep,
		}
		for _, o := range records.Marquees.All(tx) {
			if o.ID != m.ID && o.Sweep.Halt != (model.Halt{}) {
				out.HaltedAt = o.Name
			}
		}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.found[out.Marquee]
	out.At, out.Findings = f.at, f.list
	return out, err
}

func find(tx state.Reader, id string) (*records.Marquee, error) {
	if m, ok := records.Marquees.Get(tx, id); ok {
		return m, nil
	}
	for _, m := range records.Marquees.All(tx) {
		if m.Name == id {
			return m, nil
		}
	}
	return nil, fleet.Errorf(fleet.CodeNotFound, "there is no marquee %.80q", id).With(fleet.DetailScope, "marquee")
}

func actor(ctx context.Context) string {
	if p, ok := auth.From(ctx); ok {
		return p.Actor()
	}
	return fleet.ActorMaster
}

// change changes the sweep's part of a marquee's record, and tells of it.
func (s *Sweeper) change(ctx context.Context, id string, n records.Note, fn func(tx *state.Tx, m *records.Marquee) error) (Status, error) {
	var m records.Marquee
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		row, err := find(tx, id)
		if err != nil {
			return err
		}
		m = *row
		if err := fn(tx, &m); err != nil {
			return err
		}
		if n.Type != "" {
			n.Reason = fleet.Reason{Actor: actor(ctx), Rule: fleet.RuleRequested}
			records.TellMarquee(tx, &m, n)
		}
		return records.PutMarquee(tx, m)
	})
	if err != nil {
		return Status{}, err
	}
	s.Kick(m.ID)
	return s.Status(ctx, string(m.ID))
}

// Arm arms the sweep on a marquee. It also ends a halt that this marquee began:
// who arms it says that the records are the ones that count.
func (s *Sweeper) Arm(ctx context.Context, id string, a Arm) (Status, error) {
	if a.For == 0 {
		a.For = DefaultArming
	}
	if a.Share == 0 {
		a.Share = sweep.DefaultShare
	}
	switch {
	case a.For < time.Minute || a.For > MaxArming:
		return Status{}, fleet.Invalid("for", "1m to "+MaxArming.String(), "arm it again when it is over", "is %s", a.For)
	case a.Share < 1 || a.Share > 100:
		return Status{}, fleet.Invalid("share", "1 to 100 percent", "", "is %d", a.Share)
	case strings.TrimSpace(a.Why) == "" || len(a.Why) > maxWhy:
		return Status{}, fleet.Invalid("why", fmt.Sprintf("1 to %d bytes", maxWhy), "say what is to be swept, for those who wonder later", "has %d bytes", len(a.Why))
	}
	note := records.Note{Type: fleet.EventMarqueeSweepArmed, Payload: map[string]any{"for": a.For.String(), "why": a.Why, "share": a.Share}}
	return s.change(ctx, id, note, func(tx *state.Tx, m *records.Marquee) error {
		m.Sweep.Arming = model.Arming{By: actor(ctx), Why: a.Why, At: tx.Now(), Until: tx.Now().Add(a.For), Share: a.Share}
		m.Sweep.Halt, m.Sweep.Alarm = model.Halt{}, ""
		return nil
	})
}

// Disarm makes the sweep only report. What is set aside stays there.
func (s *Sweeper) Disarm(ctx context.Context, id string) (Status, error) {
	return s.change(ctx, id, records.Note{Type: fleet.EventMarqueeSweepDisarmed}, func(_ *state.Tx, m *records.Marquee) error {
		m.Sweep.Arming = model.Arming{}
		return nil
	})
}

// restoreTime bounds a restore, and restoreStep is how often it is asked for.
const (
	restoreTime = 2 * time.Minute
	restoreStep = 200 * time.Millisecond
)

// Restore brings back what the sweep set aside: its directory, its record, and,
// if it ran, its containers.
func (s *Sweeper) Restore(ctx context.Context, id string, project model.Project) (model.PlaygroundID, error) {
	var was model.Aside
	asked := time.Now()
	st, err := s.change(ctx, id, records.Note{}, func(_ *state.Tx, m *records.Marquee) error {
		for i, a := range m.Sweep.Aside {
			if a.Project == project {
				aside := append([]model.Aside{}, m.Sweep.Aside...)
				aside[i].Restore, aside[i].Trouble = true, ""
				m.Sweep.Aside, was = aside, a
				return nil
			}
		}
		return fleet.Errorf(fleet.CodeNotFound, "nothing named %s is set aside on marquee %s", project, m.Name).With(fleet.DetailScope, "project").
			With(fleet.DetailRemedy, "if the records were lost: fuse marquee rescan "+m.Name+" --adopt-all")
	})
	if err != nil {
		return "", err
	}
	t := time.NewTicker(restoreStep)
	defer t.Stop()
	for there := true; there; {
		if time.Since(asked) > restoreTime {
			return "", fleet.Errorf(fleet.CodeUnavailable, "%s is not back yet", project).
				With(fleet.DetailRemedy, "it is tried on; fuse marquee sweep status tells, and fuse playground adopt takes it back")
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
		if st, err = s.Status(ctx, string(st.Marquee)); err != nil {
			return "", err
		}
		there = false
		for _, a := range st.Sweep.Aside {
			if a.Project != project {
				continue
			}
			if there = true; a.Trouble != "" && a.Tried.After(asked) {
				return "", fleet.Errorf(fleet.CodeConflict, "%s could not be brought back: %s", project, a.Trouble)
			}
		}
	}
	p, err := s.Adopt(ctx, string(st.Marquee), project)
	if err != nil || !was.Ran {
		return p, err
	}
	if err := s.Start(ctx, p); err != nil {
		return p, errors.Join(fleet.Errorf(fleet.CodeConflict, "%s is back, and was not started", project), err)
	}
	return p, nil
}
