package loop

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
)

// look makes one pass, and says how long after it the next is due.
func (a *actor) look() (Sight, time.Duration) {
	began := time.Now()
	sum := Summary{Marquee: a.id, Acts: map[string]int{}, Refusals: map[decide.Guard]int{}}
	sight, next, err := a.pass(a.ctx, &sum)
	sum.Took = time.Since(began)
	sight.Took = sum.Took
	level := slog.LevelDebug
	switch {
	case a.ctx.Err() != nil:
		return sight, next
	case err != nil:
		level, _ = work.Ordinary(err)
	case len(sum.Acts) > 0 || sum.Verdict != observe.Seen.String() && sum.Verdict != verdictSkipped:
		level = slog.LevelInfo
	}
	a.loop.Logger.Log(a.ctx, level, "playguard pass", slog.String("marquee", string(a.id)), slog.String("verdict", sum.Verdict),
		slog.String("reason", sum.Reason), slog.Duration("took", sum.Took), slog.Int("playgrounds", sum.Playgrounds),
		slog.Any("acts", sum.Acts), slog.Any("refusals", sum.Refusals), slog.Int("moved", sum.Moved), slog.Any("error", err))
	a.loop.Figures(sum)
	return sight, next
}

const verdictSkipped = "skipped"

func (a *actor) pass(ctx context.Context, sum *Summary) (Sight, time.Duration, error) {
	l := a.loop
	sum.Verdict = verdictSkipped
	m, err := l.epoch(ctx, a.id)
	if err != nil {
		return Sight{}, l.Policy.Period, err
	}
	if m.Admin != model.AdminActive {
		l.Drop(a.id)
		return Sight{At: time.Now(), Epoch: m.Term.Epoch, Skipped: true}, l.Policy.Period, nil
	}
	site := a.site(m)
	if a.claimed != m.Term.Epoch {
		err := l.Worker.Claim(ctx, site)
		if errors.Is(err, work.ErrLost) {
			return Sight{}, l.Policy.Period, err
		}
		if err == nil { // otherwise the next pass tries again
			a.claimed = m.Term.Epoch
		}
	}
	in := decide.Input{Policy: l.Policy, Epoch: m.Term.Epoch}
	in.Sent, _ = l.Store.Head()
	in.Look = observe.Conclude(site.Host.Look(ctx), m.Identity)
	in.Heard, _ = l.Store.Head()
	if ctx.Err() != nil { // a look that was broken off by us says nothing
		return Sight{}, l.Policy.Period, context.Cause(ctx)
	}
	rows, err := a.read(&in)
	if err != nil {
		return Sight{}, l.Policy.Period, err
	}
	a.phases(ctx, l.Before, site, in, rows)
	in.Jobs = a.jobs(in.Playgrounds)
	sum.Verdict, sum.Reason, sum.Playgrounds = in.Look.Verdict().String(), string(in.Look.Reason()), len(in.Playgrounds)
	steps := decide.Decide(in)
	sight := Sight{At: in.Look.To(), Look: in.Look, Epoch: in.Epoch}
	for _, s := range steps {
		if s.Rule == decide.RuleOrphan {
			sight.Orphans = append(sight.Orphans, s)
		}
	}
	out := &outcome{actor: a, in: in, site: site, rows: rows, sum: sum, landed: map[model.PlaygroundID]uint64{}}
	if err := out.write(ctx, m, steps); err != nil {
		return sight, l.Policy.Period, err
	}
	l.remember(ctx, a.id, sight, steps)
	out.launch(steps)
	out.overtake(steps)
	a.phases(ctx, l.After, site, in, rows)
	a.reap(ctx, site, in.Look)
	next := l.Policy.Period
	if out.marquee.Reach == model.ReachQuarantined {
		next = l.Policy.NextLook(out.marquee.Marquee)
	}
	return sight, next, nil
}

// reapEvery is how often a marquee is told to forget old operations.
const reapEvery = 24 * time.Hour

// reap keeps the list of operations short that each look brings.
func (a *actor) reap(ctx context.Context, site work.Site, look observe.Look) {
	if look.Verdict() != observe.Seen || time.Since(a.reaped) < reapEvery {
		return
	}
	a.reaped = time.Now()
	if err := a.loop.Worker.Reap(ctx, site); err != nil {
		a.loop.Logger.Info("old operations were not forgotten", slog.String("marquee", string(a.id)), slog.Any("error", err))
	}
}

// read reads the rows, after the answer came.
func (a *actor) read(in *decide.Input) (map[model.PlaygroundID]*records.Playground, error) {
	rows := map[model.PlaygroundID]*records.Playground{}
	err := a.loop.Store.View(func(tx *state.ReadTx) error {
		m, ok := records.Marquees.Get(tx, string(a.id))
		if !ok {
			return records.ErrMoved
		}
		in.Rows, in.Marquee = tx.Revision(), m.Marquee
		for _, p := range records.Of(tx, a.id) {
			rows[p.ID] = p
			in.Playgrounds = append(in.Playgrounds, p.Playground)
		}
		return nil
	})
	in.Now, in.Jobs = time.Now(), a.jobs(in.Playgrounds)
	in.Seed = uint64(in.Now.UnixNano())
	return rows, err
}

// outcome writes what a pass decided, and begins what that asks for.
type outcome struct {
	*actor
	in      decide.Input
	site    work.Site
	rows    map[model.PlaygroundID]*records.Playground
	sum     *Summary
	marquee records.Marquee               // as it is after the pass
	landed  map[model.PlaygroundID]uint64 // revision of the rows whose steps count
}

// write makes one commit of all that changes records. A record that is not as
// it was read keeps what it says: what was decided on it is dropped.
func (o *outcome) write(ctx context.Context, m records.Marquee, steps []decide.Step) error {
	o.marquee = m
	mine := map[model.PlaygroundID][]decide.Step{}
	var about []decide.Step
	changes := false
	for _, s := range steps {
		o.count(s)
		if r, ok := s.Act.(decide.Refuse); ok && r.Guard == decide.GuardOneLook && s.Rule == decide.RuleDestroyed {
			o.within(o.in.Policy.StrikeGap + time.Second) // this look came too early, and took the place of the one in time
		}
		if s.Playground == "" {
			about = append(about, s)
		} else {
			mine[s.Playground] = append(mine[s.Playground], s)
		}
		changes = changes || o.changes(s)
	}
	for id, row := range o.rows {
		o.landed[id] = row.Revision
	}
	if !changes {
		return nil
	}
	moved := 0
	_, err := o.loop.Store.Update(ctx, func(tx *state.Tx) error {
		now, ok := records.Marquees.Get(tx, string(o.id))
		if !ok || now.Revision != m.Revision {
			return records.ErrMoved
		}
		if err := o.aboutMarquee(tx, *now, about); err != nil {
			return err
		}
		for id, list := range mine {
			row, ok := records.Playgrounds.Get(tx, string(id))
			if !ok || row.Revision != o.rows[id].Revision {
				delete(o.landed, id)
				moved++
				continue
			}
			if err := o.aboutPlayground(tx, *row, list); err != nil {
				return err
			}
		}
		return nil
	})
	o.sum.Moved = moved
	return err
}

// count takes a step into the summary.
func (o *outcome) count(s decide.Step) {
	switch act := s.Act.(type) {
	case decide.Refuse:
		o.sum.Refusals[act.Guard]++
	case decide.Keep:
	default:
		o.sum.Acts[Kind(s)]++
	}
}

// Kind names what a step does, for figures: a closed list.
func Kind(s decide.Step) string {
	switch act := s.Act.(type) {
	case decide.Move:
		return "to_" + string(act.To)
	case decide.Remote:
		return "run_" + string(decide.VerbOf(act.Op).Kind())
	case decide.Queue:
		return "queue"
	case decide.Strike:
		return "strike"
	case decide.Settle:
		return "settle"
	case decide.Delete:
		return "delete"
	case decide.Warn:
		return "warn"
	case decide.Close:
		if act.Attempt.Code != 0 {
			return "attempt_failed"
		}
		return "attempt_done"
	case decide.End:
		return "end_attempt"
	case decide.Report:
		return "report_orphan"
	case decide.Miss:
		return "miss"
	case decide.Quarantine:
		return "quarantine"
	case decide.Return:
		return "return"
	case decide.Alarm:
		return "alarm"
	}
	return "note"
}

// changes reports whether a step is worth a commit.
func (o *outcome) changes(s decide.Step) bool {
	switch act := s.Act.(type) {
	case decide.Remote, decide.Keep:
		return false
	case decide.Refuse:
		return o.skipTold(s, act)
	case decide.Alarm:
		return act.Trouble != o.alarm
	case decide.Report:
		return !o.orphans[act.Project.String()]
	}
	return true
}

// skipTold reports whether people are to be told that work forbade a step.
func (o *outcome) skipTold(s decide.Step, r decide.Refuse) bool {
	return (r.Guard == decide.GuardDirty || r.Guard == decide.GuardDirt) && o.in.Now.Sub(o.skipped[s.Playground]) >= time.Hour
}

func (o *outcome) aboutMarquee(tx *state.Tx, m records.Marquee, steps []decide.Step) error {
	before, halted := m.Marquee, m.Sweep.Halt
	for _, s := range steps {
		m.Marquee = decide.ApplyMarquee(m.Marquee, s, tx.Now())
		n := records.Note{Reason: records.ByLoop(fleet.RuleSeen, s.Why), Error: s.Why, Payload: events.PlaygroundChange{Rule: string(s.Rule), Epoch: o.in.Epoch}}
		switch act := s.Act.(type) {
		case decide.Quarantine:
			n.Type = fleet.EventMarqueeQuarantined
			if err := tx.UpsertDeadLetter(fleet.DeadLetter{Kind: fleet.DeadLetterMarqueeQuarantined, EntityID: string(m.ID), Reason: s.Why}); err != nil {
				return err
			}
		case decide.Return:
			n.Type, n.Error = fleet.EventMarqueeReturned, ""
			o.within(leastBetween)
		case decide.Alarm:
			if act.Trouble == o.alarm {
				continue
			}
			o.alarm, n.Type, n.Error = act.Trouble, fleet.EventMarqueeAlarmed, act.Trouble+": "+s.Why
			if s.Rule == decide.RuleEpoch && m.Sweep.Halt == (model.Halt{}) { // whoever writes this leads: the records are older than the host
				m.Sweep.Halt = model.Halt{At: tx.Now(), Why: n.Error}
			}
		case decide.Report:
			if o.orphans[act.Project.String()] {
				continue
			}
			o.orphans[act.Project.String()] = true
			n.Type = fleet.EventMarqueeOrphanFound
		case decide.Clean:
			o.alarm = ""
			continue
		default:
			continue
		}
		records.TellMarquee(tx, &m, n)
	}
	if m.Marquee == before && m.Sweep.Halt == halted {
		o.marquee = m
		return nil
	}
	m.Revision = tx.Revision() + 1
	o.marquee = m
	return records.PutMarquee(tx, m)
}

func (o *outcome) aboutPlayground(tx *state.Tx, p records.Playground, steps []decide.Step) error {
	writes := false
	for _, s := range steps {
		if _, remote := s.Act.(decide.Remote); remote { // its claim is a commit of its own
			continue
		}
		if _, gone := s.Act.(decide.Delete); gone {
			records.Tell(tx, &p, o.note(fleet.EventPlaygroundDestroyed, s))
			delete(o.landed, p.ID)
			delete(o.skipped, p.ID)
			return records.DeletePlayground(tx, p.ID)
		}
		if settle, ok := s.Act.(decide.Settle); ok {
			if err := o.loop.Worker.Settle(tx, &p, settle.Op, work.End{Lost: settle.Lost, Status: settle.Exit}); err != nil {
				return err
			}
			writes = true
			o.within(leastBetween)
			continue
		}
		before := p.Playground
		p.Playground, _ = decide.Apply(p.Playground, s, o.in.Policy, decide.Stamp{At: tx.Now(), Epoch: o.in.Epoch})
		records.Ended(tx, before, &p, s, o.in.Epoch)
		switch s.Act.(type) {
		case decide.Close, decide.End: // what follows need not wait for its turn
			o.within(leastBetween)
		}
		_, strike := s.Act.(decide.Strike)
		writes = writes || s.Writes() || strike
		if err := o.tell(tx, &p, s); err != nil {
			return err
		}
	}
	if !writes {
		return nil
	}
	o.landed[p.ID] = tx.Revision() + 1
	return records.PutPlayground(tx, p)
}

func (o *outcome) note(typ string, s decide.Step) records.Note {
	return records.Note{
		Type: typ, Reason: records.ByLoop(fleet.RuleSeen, s.Why), Payload: events.PlaygroundChange{Rule: string(s.Rule), Epoch: o.in.Epoch},
	}
}

// tell writes the events of a step.
func (o *outcome) tell(tx *state.Tx, p *records.Playground, s decide.Step) error {
	n := o.note("", s)
	switch act := s.Act.(type) {
	case decide.Move:
		if act.To != model.StatePending || !act.Start {
			p.Job, p.Step = "", ""
		}
		records.Moved(tx, p, s, o.in.Epoch)
		if act.Failure.Category == model.CategoryRepairsSpent {
			return o.gaveUp(tx, p, s)
		}
		return nil
	case decide.Strike:
		if act.Strikes.Count == 0 {
			return nil
		}
		if p.State == model.StateDestroying {
			o.within(o.in.Policy.StrikeGap + time.Second)
		}
		if act.Strikes.Count > 1 || s.Rule == decide.RuleDestroyed {
			return nil
		}
		n.Type, n.Error = fleet.EventPlaygroundSuspected, s.Why
	case decide.Flag:
		if act.Attention == "" {
			return nil
		}
		n.Type, n.Error = fleet.EventPlaygroundFlagged, string(act.Attention)
		if act.Attention == model.AttentionRepairsSpent {
			if err := o.gaveUp(tx, p, s); err != nil {
				return err
			}
		}
	case decide.Refuse:
		if !o.skipTold(s, act) {
			return nil
		}
		o.skipped[p.ID] = o.in.Now
		n.Type, n.Error = fleet.EventPlaygroundSkipped, s.Why
	default:
		return nil
	}
	records.Tell(tx, p, n)
	return nil
}

func (o *outcome) gaveUp(tx *state.Tx, p *records.Playground, s decide.Step) error {
	return tx.UpsertDeadLetter(fleet.DeadLetter{Kind: fleet.DeadLetterPlaygroundRepairs, EntityID: string(p.ID), Reason: s.Why})
}

// launch begins what landed.
func (o *outcome) launch(steps []decide.Step) {
	for _, s := range steps {
		revision, ok := o.landed[s.Playground]
		if !s.Works() || !ok {
			continue
		}
		if _, remote := s.Act.(decide.Remote); remote {
			o.start(s.Playground, func(ctx context.Context) (bool, error) {
				end, err := o.loop.Worker.Operate(ctx, o.site, s, revision)
				return !end.Lost && end.Status == 0, err
			})
			continue
		}
		o.start(s.Playground, func(ctx context.Context) (bool, error) {
			return true, o.loop.Worker.Job(ctx, o.site, s.Playground)
		})
	}
}

// overtake has operations end that another process began, and that nobody wants any
// more: those of this process are told by who follows them.
func (o *outcome) overtake(steps []decide.Step) {
	for _, s := range steps {
		i := slices.IndexFunc(o.in.Playgrounds, func(p model.Playground) bool { return p.ID == s.Playground })
		if s.Act != decide.Act(decide.Refuse{Guard: decide.GuardOp}) || i < 0 || !work.Overtaken(o.in.Playgrounds[i]) {
			continue
		}
		op := o.in.Playgrounds[i].Op.ID
		o.start(s.Playground, func(ctx context.Context) (bool, error) {
			return o.loop.Worker.Overtake(ctx, o.site, s.Playground, op), nil
		})
	}
}
