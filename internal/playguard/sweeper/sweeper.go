package sweeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/sweep"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Config wires a Sweeper.
type Config struct {
	Store  records.Store
	Worker *work.Worker
	Policy sweep.Policy
	Logger *slog.Logger
	// Kick has a marquee looked at now.
	Kick func(model.MarqueeID)
	// Adopt and Start take back what was restored.
	Adopt func(ctx context.Context, marquee string, p model.Project) (model.PlaygroundID, error)
	Start func(ctx context.Context, id model.PlaygroundID) error
}

// Sweeper is the sweep on all marquees. It is safe for concurrent use.
type Sweeper struct {
	Config
	mu    sync.Mutex
	found map[model.MarqueeID]found
}

// found is what the last pass decided about a marquee's orphans: this process's
// memory.
type found struct {
	at   time.Time
	list []sweep.Finding
}

// New makes a Sweeper.
func New(c Config) *Sweeper { return &Sweeper{Config: c, found: map[model.MarqueeID]found{}} }

// Phase is the sweep's part of a pass: the last.
func (s *Sweeper) Phase() loop.Phase { return loop.Phase{Name: "sweep", Run: s.run} }

func (s *Sweeper) run(ctx context.Context, t *loop.Turn) error {
	id := t.Site.Marquee
	in := sweep.Input{
		Now: t.In.Now, Policy: s.Policy, Look: t.In.Look, Epoch: t.In.Epoch, Sent: t.In.Sent, Heard: t.In.Heard, Rows: t.In.Rows,
	}
	if err := s.Store.View(func(tx *state.ReadTx) error {
		s.forget(tx)
		return read(tx, id, &in)
	}); err != nil {
		return err
	}
	plan := sweep.Decide(in)
	s.mu.Lock()
	s.found[id] = found{t.In.Now, plan.Findings}
	s.mu.Unlock()
	if plan.Order == nil && len(plan.Notes) == 0 && same(plan.Sweep, in.Sweep) {
		return nil
	}
	req, err := s.write(ctx, t, in.Sweep, plan)
	if err != nil || plan.Order == nil {
		return err
	}
	t.Background(func(ctx context.Context) { s.start(ctx, t, req) })
	return nil
}

// forget drops what was found on marquees that are gone.
func (s *Sweeper) forget(tx state.Reader) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.found {
		if _, there := records.Marquees.Get(tx, string(id)); !there {
			delete(s.found, id)
		}
	}
}

// read is all that a decision needs of the records. They are read after the
// look, and of all marquees: a name that any record has is no orphan's.
func read(tx state.Reader, id model.MarqueeID, in *sweep.Input) error {
	row, ok := records.Marquees.Get(tx, string(id))
	if !ok {
		return records.ErrMoved
	}
	in.Marquee, in.Sweep, in.History = row.Marquee, row.Sweep, row.History
	in.Known = map[model.Project]bool{}
	for _, p := range records.Playgrounds.All(tx) {
		in.Known[p.Project] = true
	}
	for _, m := range records.Marquees.All(tx) {
		if m.ID != id && m.Sweep.Halt != (model.Halt{}) {
			in.HaltedAt = m.Name
		}
	}
	return nil
}

func same(a, b model.Sweep) bool {
	a.Suspects, b.Suspects = append([]model.Suspect{}, a.Suspects...), append([]model.Suspect{}, b.Suspects...)
	a.Aside, b.Aside = append([]model.Aside{}, a.Aside...), append([]model.Aside{}, b.Aside...)
	return reflect.DeepEqual(a, b)
}

// write keeps what was decided, unless the record has changed since. An
// operation is claimed in the same commit, before the marquee is asked.
func (s *Sweeper) write(ctx context.Context, t *loop.Turn, before model.Sweep, plan sweep.Plan) (req runner.Request, err error) {
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := records.Marquees.Get(tx, string(t.Site.Marquee))
		if !ok || row.Admin != model.AdminActive || row.Term.Epoch != t.Site.Epoch || !same(row.Sweep, before) {
			return records.ErrMoved
		}
		m := *row
		m.Sweep = plan.Sweep
		if o := plan.Order; o != nil {
			for _, p := range records.Playgrounds.All(tx) {
				if p.Project == o.Project {
					return records.ErrMoved
				}
			}
			m.Sweep.Op.ID = strings.ToLower(uid.New())
			req = runner.Request{
				Op: m.Sweep.Op.ID, Epoch: t.Site.Epoch, Project: o.Project, Playground: o.Playground,
				Verb: decide.VerbOf(o.Op), Limit: s.Worker.Policy.DownTimeout,
			}
		}
		for _, n := range plan.Notes {
			tell(tx, &m, n, t.Site.Epoch)
		}
		return records.PutMarquee(tx, m)
	})
	if err == nil {
		s.count(t.Site.Marquee, before.Op, plan.Notes)
	}
	return req, err
}

// kinds are the events of the notes.
var kinds = map[sweep.What]string{
	sweep.Swept: fleet.EventMarqueeOrphanSwept, sweep.Restored: fleet.EventMarqueeOrphanRestored, sweep.Purged: fleet.EventMarqueeOrphanPurged,
	sweep.Failed: fleet.EventMarqueeSweepFailed, sweep.Halted: fleet.EventMarqueeSweepHalted, sweep.Alarmed: fleet.EventMarqueeAlarmed,
}

func tell(tx *state.Tx, m *records.Marquee, n sweep.Note, epoch uint64) {
	text := n.Why
	payload := map[string]any{"epoch": epoch}
	if !n.Project.IsZero() {
		text = n.Project.String() + ": " + text
		payload["project"] = n.Project.String()
	}
	records.TellMarquee(tx, m, records.Note{Type: kinds[n.What], Reason: records.ByLoop(fleet.RuleSeen, n.Why), Error: text, Payload: payload})
}

// count counts how an operation ended. One that was ended because its time was over is
// logged as well: its marquee is slow, or something there hangs.
func (s *Sweeper) count(id model.MarqueeID, op model.SweepOp, notes []sweep.Note) {
	for _, n := range notes {
		switch n.What {
		case sweep.Swept, sweep.Restored, sweep.Purged:
			s.Worker.Ended(op.Kind, work.EndedOK)
		case sweep.Failed:
			result := work.EndedFailed
			if n.Late {
				result = work.EndedLate
				work.LogOverrun(s.Logger, id, op.ID, op.Kind, s.Worker.Policy.DownTimeout, slog.String("project", n.Project.String()))
			}
			s.Worker.Ended(op.Kind, result)
		}
	}
}

// start asks the marquee for what was claimed. A later look shows what became of
// it; only a marquee that says that it did not begin ends the claim here.
func (s *Sweeper) start(ctx context.Context, t *loop.Turn, req runner.Request) {
	err := s.Worker.Order(ctx, t.Site, req)
	switch {
	case err == nil:
		t.Soon(5 * time.Second)
		t.Kick()
		return
	case !work.Refused(err):
		s.Logger.Info("the start of a sweep was not answered", slog.String("marquee", string(t.Site.Marquee)), slog.Any("error", err))
		return
	}
	s.Worker.Ended(req.Verb.Kind(), work.EndedRefused)
	_, uerr := s.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := records.Marquees.Get(tx, string(t.Site.Marquee))
		if !ok || row.Sweep.Op.ID != req.Op {
			return nil
		}
		m := *row
		m.Sweep.Op = model.SweepOp{}
		if errors.Is(err, runner.ErrBusy) || errors.Is(err, records.ErrMoved) { // the next pass tries again
			return records.PutMarquee(tx, m)
		}
		n := sweep.Note{What: sweep.Failed, Project: req.Project, Why: fmt.Sprintf("%s was refused: %v", req.Verb.Kind(), err)}
		tell(tx, &m, n, req.Epoch)
		m.Sweep.Suspects, m.Sweep.Aside = slices.Clone(m.Sweep.Suspects), slices.Clone(m.Sweep.Aside)
		// The host says why: an hour, and two looks more, before it is asked again.
		for i := range m.Sweep.Suspects {
			if m.Sweep.Suspects[i].Project == req.Project {
				m.Sweep.Suspects[i].Strikes = model.Strikes{}
			}
		}
		for i := range m.Sweep.Aside {
			if m.Sweep.Aside[i].Project == req.Project {
				m.Sweep.Aside[i] = m.Sweep.Aside[i].Fail(n.Why, tx.Now())
			}
		}
		return records.PutMarquee(tx, m)
	})
	if uerr != nil && ctx.Err() == nil {
		s.Logger.Info("a refused sweep was not written down", slog.String("marquee", string(t.Site.Marquee)), slog.Any("error", uerr))
	}
}
