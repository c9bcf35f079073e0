package decide_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// world is a model host with records, jobs and people, and an oracle that
// looks over the shoulder of every pass.
type world struct {
	host    *modelHost
	marquee model.Marquee
	rows    map[model.PlaygroundID]model.Playground
	jobs    map[model.PlaygroundID]decide.Job
	now     time.Time
	policy  model.Policy
	seed    uint64
	ops     int
	slow    bool // operations stay at work until endOps
	fail    func(string, ...any)

	badSince map[model.PlaygroundID]time.Time // first complete look of those in a row that were not healthy
	spending map[model.PlaygroundID]map[decide.Cost][]time.Time
}

func newWorld(n int, fail func(string, ...any)) *world {
	h := newHost()
	w := &world{
		host: h, marquee: marquee(h), now: noon, fail: fail, policy: model.DefaultPolicy(),
		rows: map[model.PlaygroundID]model.Playground{}, jobs: map[model.PlaygroundID]decide.Job{},
		badSince: map[model.PlaygroundID]time.Time{}, spending: map[model.PlaygroundID]map[decide.Cost][]time.Time{},
	}
	for i := range n {
		p := playground("shop", fmt.Sprintf("p%d", i))
		h.stack(p.Project).place(services, "c1")
		w.rows[p.ID], w.jobs[p.ID] = p, decide.JobNone
	}
	return w
}

func (w *world) ids() []model.PlaygroundID {
	var ids []model.PlaygroundID
	for id := range w.rows {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (w *world) input() decide.Input {
	w.seed++
	in := decide.Input{
		Now: w.now, Policy: w.policy, Marquee: w.marquee, Look: w.host.look(w.now), Jobs: w.jobs,
		Epoch: 7, Seed: w.seed, Sent: 1, Heard: 1, Rows: 1,
	}
	for _, id := range w.ids() {
		in.Playgrounds = append(in.Playgrounds, w.rows[id])
	}
	return in
}

// pass makes one pass, checks it, and carries it out.
func (w *world) pass(after time.Duration) []decide.Step {
	w.now = w.now.Add(after)
	in := w.input()
	steps := decide.Decide(in)
	w.check(in, steps)
	for _, s := range steps {
		w.marquee = decide.ApplyMarquee(w.marquee, s, w.now)
		p, ok := w.rows[s.Playground]
		if !ok {
			continue
		}
		w.ops++
		q, there := decide.Apply(p, s, in.Policy, decide.Stamp{At: w.now, OpID: fmt.Sprint("op", w.ops), Epoch: 7})
		if !there {
			delete(w.rows, p.ID)
			continue
		}
		w.rows[p.ID] = q
		if s.Works() {
			w.begin(q, s)
		}
	}
	return steps
}

func (w *world) begin(p model.Playground, s decide.Step) {
	r, remote := s.Act.(decide.Remote)
	if !remote {
		w.jobs[p.ID] = decide.JobAlive
		return
	}
	verb := decide.VerbOf(r.Op)
	exit := w.host.run(p, verb, w.now)
	if st := w.host.stack(p.Project); w.slow {
		st.ops = []string{fmt.Sprintf("%s %s %s 7 running", p.Op.ID, p.Project, verb.Kind())}
	} else {
		st.ops = nil
		w.rows[p.ID] = settled(p, exit, w.now)
	}
}

// endOps lets the operations at work end, with or without an exit status.
func (w *world) endOps(how string) {
	for _, st := range w.host.stacks {
		for i, op := range st.ops {
			if trimmed, ok := cutSuffix(op, "running"); ok {
				st.ops[i] = trimmed + how
			}
		}
	}
}

func cutSuffix(s, suffix string) (string, bool) {
	if n := len(s) - len(suffix); n >= 0 && s[n:] == suffix {
		return s[:n], true
	}
	return s, false
}

// work lets each living job take its next step; outcome says how one ends.
func (w *world) work(outcome string) {
	for _, id := range w.ids() {
		if w.jobs[id] != decide.JobAlive {
			continue
		}
		p := w.rows[id]
		switch {
		case outcome == "die" || p.State != model.StatePending && p.State != model.StateInProgress:
			w.jobs[id] = decide.JobNone
		case p.State == model.StatePending:
			p.State, p.StateSince = model.StateInProgress, w.now
		case outcome == "fail":
			p.State, p.StateSince, p.Failure = model.StateError, w.now, recoverable
			w.jobs[id] = decide.JobNone
		case outcome == "conflict":
			p.State, p.StateSince, p.Failure = model.StateError, w.now, model.Failure{Class: model.ClassRecoverable, Category: model.CategoryConflict}
			w.jobs[id] = decide.JobNone
		default:
			st := w.host.stack(p.Project)
			volumes := st.volumes
			st.place(p.Services, p.Desired)
			st.volumes = union(volumes, st.volumes)
			p.State, p.StateSince, p.Applied, p.AppliedAt, p.Owed, p.Failure, p.Queued = model.StateRunning, w.now, p.Desired, w.now, "", model.Failure{}, model.Queued{}
			w.jobs[id] = decide.JobNone
		}
		w.rows[id] = p
	}
}

// ask is a person's action. It opens the budgets anew, as it does in the
// record.
func (w *world) ask(id model.PlaygroundID, a model.Action) {
	p, ok := w.rows[id]
	if !ok {
		return
	}
	q, err := p.Request(a, w.now)
	if err != nil {
		return
	}
	w.rows[id] = q
	delete(w.spending, id)
	if q.State == model.StatePending {
		w.jobs[id] = decide.JobAlive
	}
}

// check is the oracle: the properties of a pass, from its input and its steps
// alone.
func (w *world) check(in decide.Input, steps []decide.Step) {
	seen := in.Look.Verdict() == observe.Seen
	about, working, costs := map[model.PlaygroundID]int{}, map[model.PlaygroundID]int{}, 0
	for _, s := range steps {
		p, known := w.rows[s.Playground]
		about[s.Playground]++
		if s.Rule == "" || s.Act == nil {
			w.fail("property 7: a step without a rule or an act: %+v", s)
		}
		if r, ok := s.Act.(decide.Refuse); ok {
			w.refused(in, p, s, r)
			continue
		}
		if !known {
			w.others(s)
			continue
		}
		if !seen || in.Look.Project(p.Project).Verdict() != observe.Seen {
			w.fail("property 1: acts without having seen: %v", s)
		}
		if s.Works() {
			working[p.ID]++
			w.mayWork(in, p, s)
		}
		w.legal(in, p, s)
		if c := costOf(s); c != decide.CostNone {
			costs++
			w.spend(in, p, c)
		}
	}
	for id := range w.rows {
		if about[id] == 0 || working[id] > 1 {
			w.fail("%s: %d steps, %d of them work", id, about[id], working[id])
		}
	}
	w.ends(in, steps)
	if costs > in.Policy.RolloutsPerPass {
		w.fail("property 6: %d rollouts in a pass", costs)
	}
	w.permuted(in, steps)
	w.remember(in)
}

func (w *world) refused(in decide.Input, p model.Playground, s decide.Step, r decide.Refuse) {
	if r.Guard == "" {
		w.fail("property 7: refused by nobody: %v", s)
	}
	q, there := decide.Apply(p, s, in.Policy, decide.Stamp{At: w.now})
	if !there || !reflect.DeepEqual(q, p) {
		w.fail("property 6: a refusal changes the record: %v", s)
	}
}

// others checks steps about the marquee and about what has no row.
func (w *world) others(s decide.Step) {
	switch s.Act.(type) {
	case decide.Miss, decide.Clean, decide.Quarantine, decide.Return, decide.Alarm, decide.Report:
	default:
		w.fail("property 9: acts on what has no row: %v", s)
	}
}

// mayWork checks what sets work in motion.
func (w *world) mayWork(in decide.Input, p model.Playground, s decide.Step) {
	dirt, _ := in.Look.Project(p.Project).Dirt()
	owed, starts := p.Owed, true
	switch a := s.Act.(type) {
	case decide.Remote:
		if d, ok := a.Op.(decide.Destroy); ok && (p.Intent != model.IntentGone || p.KeepVolumes && len(d.Volumes) > 0) {
			w.fail("property 4: %v of a playground with intent %s", s, p.Intent)
		}
		if r, ok := a.Op.(decide.Reclaim); ok {
			w.mayReclaim(in, p, s, r)
		}
		_, up := a.Op.(decide.Up)
		owed, starts = "", up
	case decide.Move:
		if a.Owed != "" {
			owed = a.Owed
		}
		if a.Cost == decide.CostConflict && dirt != observe.Clean {
			w.fail("property 2: conflict retry over %s work", dirt)
		}
	}
	if (owed == model.ActionRollout || owed == model.ActionHardRestart) && dirt != observe.Clean {
		w.fail("property 2: rollout over %s work: %v", dirt, s)
	}
	if starts && p.Intent != model.IntentUp && p.Intent != model.IntentJob {
		w.fail("property 3: starts a playground with intent %s: %v", p.Intent, s)
	}
	if w.jobs[p.ID] == decide.JobAlive {
		w.fail("begins beside a living job: %v", s)
	}
	ops, _ := in.Look.Project(p.Project).Ops()
	if slices.ContainsFunc(ops, func(op observe.Op) bool { return op.Running }) {
		w.fail("begins beside an operation at work: %v", s)
	}
}

// legal checks that states take an edge that exists, and that a worsening was
// seen long enough.
func (w *world) legal(in decide.Input, p model.Playground, s decide.Step) {
	worse := false
	switch a := s.Act.(type) {
	case decide.Move:
		failing := a.To == model.StateError && model.CanFail(a.From) && !a.Failure.IsZero()
		if a.From != p.State || !model.CanTransition(a.From, a.To) && !model.CanObserve(a.From, a.To) && !failing {
			w.fail("an edge that is not there: %v", s)
		}
		if a.To == model.StateRunning && p.Intent != model.IntentJob {
			containers, _ := in.Look.Project(p.Project).Containers()
			if run := decide.Assess(p.Services, containers); run.String() != string(decide.Healthy) {
				w.fail("promotes what is %s", run)
			}
		}
		worse = a.From == model.StateRunning && a.To != model.StateHasChanges && (a.To != model.StatePending || a.Cost == decide.CostHeal)
	case decide.Remote:
		_, worse = a.Op.(decide.Up)
	case decide.Delete:
		if p.State != model.StateDestroying || p.Intent != model.IntentGone {
			w.fail("deletes the row of a playground that is %s, intent %s", p.State, p.Intent)
		}
		worse = true
	}
	since, bad := w.badSince[p.ID]
	if worse && (!bad || in.Look.To().Sub(since) < in.Policy.StrikeGap) {
		w.fail("acts on one look: %v", s)
	}
}

func costOf(s decide.Step) decide.Cost {
	switch a := s.Act.(type) {
	case decide.Move:
		return a.Cost
	case decide.Remote:
		return a.Cost
	}
	return decide.CostNone
}

// spend keeps the oracle's own account of what was begun.
func (w *world) spend(in decide.Input, p model.Playground, c decide.Cost) {
	if w.spending[p.ID] == nil {
		w.spending[p.ID] = map[decide.Cost][]time.Time{}
	}
	book, pol := w.spending[p.ID], in.Policy
	book[c] = append(book[c], w.now)
	within := func(window time.Duration, costs ...decide.Cost) (n int) {
		for _, c := range costs {
			for _, at := range book[c] {
				if w.now.Sub(at) < window {
					n++
				}
			}
		}
		return n
	}
	for _, b := range []struct {
		what       string
		n, allowed int
	}{
		{"repairs", within(pol.RepairWindow, decide.CostRepair, decide.CostHeal), pol.RepairTries},
		{"repairs in a lease", within(pol.RepairLease, decide.CostRepair), 1},
		{"rollouts in a cooldown", within(pol.RolloutCooldown, decide.CostRollout, decide.CostHeal), 1},
		{"conflict retries", within(pol.ConflictWindow, decide.CostConflict), pol.ConflictTries},
		{"conflict retries in a spacing", within(pol.ConflictSpacing, decide.CostConflict), 1},
	} {
		if b.n > b.allowed {
			w.fail("property 6: %d %s of %s", b.n, b.what, p.ID)
		}
	}
}

// permuted checks that the order of the rows does not matter.
func (w *world) permuted(in decide.Input, steps []decide.Step) {
	if len(in.Playgrounds) < 2 {
		return
	}
	turned := in
	turned.Playgrounds = slices.Clone(in.Playgrounds)
	slices.Reverse(turned.Playgrounds)
	if got := decide.Decide(turned); !reflect.DeepEqual(got, steps) {
		w.fail("property 8: another order of rows gives other steps:\n%v\n%v", steps, got)
	}
	reseeded := in
	reseeded.Seed++
	if a, b := truths(steps), truths(decide.Decide(reseeded)); !slices.Equal(a, b) {
		w.fail("property 8: another seed gives other truths:\n%v\n%v", a, b)
	}
}

// truths are the steps that do not depend on the budget of the pass.
func truths(steps []decide.Step) []string {
	var lines []string
	for _, s := range steps {
		r, refused := s.Act.(decide.Refuse)
		if costOf(s) == decide.CostNone && (!refused || r.Guard != decide.GuardBudget) && s.Rule != decide.RuleCalm && s.Rule != decide.RuleFlag {
			lines = append(lines, s.String())
		}
	}
	slices.Sort(lines)
	return lines
}

// remember keeps the oracle's own account of what complete looks showed.
func (w *world) remember(in decide.Input) {
	for id, p := range w.rows {
		containers, ok := in.Look.Project(p.Project).Containers()
		if !ok {
			continue
		}
		run := decide.Assess(p.Services, containers)
		if run.Condition == decide.Healthy && len(run.Leftovers) == 0 {
			delete(w.badSince, id)
		} else if _, bad := w.badSince[id]; !bad {
			w.badSince[id] = in.Look.To()
		}
	}
}

// quiet reports whether a pass wrote nothing and began nothing.
func quiet(steps []decide.Step) bool {
	for _, s := range steps {
		switch s.Act.(type) {
		case decide.Keep, decide.Refuse, decide.Report, decide.Alarm:
		default:
			return false
		}
	}
	return true
}

// settle lets the world come to rest: everything can be seen, jobs succeed,
// operations end. It reports how many passes it took; -1 if it does not.
func (w *world) settle(limit int) int {
	w.host.ending, w.host.cut, w.host.failed, w.host.identity, w.slow = observe.EndedExit, 0, "", w.host.pin, false
	w.endOps("0")
	for n := range limit {
		for range 3 {
			w.work("succeed")
		}
		if quiet(w.pass(11 * time.Minute)) {
			return n
		}
	}
	return -1
}

// events are what may happen between two passes.
func (w *world) event(kind, which, how int) {
	ids := w.ids()
	if len(ids) == 0 {
		return
	}
	id := ids[which%len(ids)]
	st := w.host.stack(w.rows[id].Project)
	switch kind {
	case 0:
		w.ask(id, model.Actions()[how%len(model.Actions())])
	case 1:
		st.end([]int{0, 0, 1, 137}[how%4], w.now)
	case 2:
		if len(st.containers) > 0 {
			c := &st.containers[how%len(st.containers)]
			switch how % 5 {
			case 0:
				c.state, c.exit, c.finished = "exited", 1, w.now
			case 1, 2:
				c.health = []string{"", "unhealthy", "starting"}[how%3]
			case 3:
				c.replaces, c.name = c.name, "0123456789ab_"+c.name
			case 4:
				c.digest = "d0"
			}
		}
	case 3:
		st.containers = nil
	case 4:
		st.git = map[string]string{"web": []string{gitClean, gitDirty, "unread"}[how%3]}
	case 5:
		w.host.boot, w.host.booted, w.host.daemon = fmt.Sprint("boot", w.now.Unix()), w.now, w.now
		for _, s := range w.host.stacks {
			s.end(0, w.now.Add(-time.Second))
		}
	case 6:
		w.host.ending = []observe.Ending{observe.EndedExit, observe.EndedDial, observe.EndedDeadline}[how%3]
	case 7:
		w.host.cut = []int{0, 1, 300, 900}[how%4]
	case 8:
		w.host.identity.DataRoot = []string{w.host.pin.DataRoot, "/mnt/new"}[how%2]
	case 9:
		w.work([]string{"succeed", "fail", "die", "conflict"}[how%4])
	case 10:
		st.compose = []string{"", "c0", "c1"}[how%3]
	case 11:
		st.foreign = how % 2
	case 12:
		p := w.rows[id]
		p.Desired = []string{"c1", "c2"}[how%2]
		w.rows[id] = p
	case 13:
		w.slow = how%2 == 0
		w.endOps([]string{"0", "1", "lost"}[how%3])
	case 14:
		st.dirUnread = how%2 == 1
	case 15:
		st.place(services, w.rows[id].Desired)
	case 16:
		w.limit(id, how)
	}
}

// TestHistories runs generated histories under the eyes of the oracle and then
// lets the world come to rest: properties 1 to 9.
func TestHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(rapid.IntRange(1, 5).Draw(t, "playgrounds"), t.Fatalf)
		for range rapid.IntRange(1, 40).Draw(t, "events") {
			w.event(rapid.IntRange(0, 16).Draw(t, "kind"), rapid.IntRange(0, 4).Draw(t, "which"), rapid.IntRange(0, 59).Draw(t, "how"))
			gap := rapid.SampledFrom([]time.Duration{0, 10 * time.Second, time.Minute, time.Minute, 4 * time.Minute, 11 * time.Minute}).Draw(t, "gap")
			if gap > 0 {
				w.pass(gap)
			}
		}
		if w.settle(25) < 0 {
			t.Fatalf("property 5: no fixed point: %v", w.pass(11*time.Minute))
		}
		steps := w.pass(time.Minute)
		steps = slices.DeleteFunc(steps, func(s decide.Step) bool { return strings.HasPrefix(string(s.Rule), "expiry.") }) // the clock goes on
		if !quiet(steps) {
			t.Fatalf("property 5: the fixed point is none: %v", steps)
		}
	})
}
