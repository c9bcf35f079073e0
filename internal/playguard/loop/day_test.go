package loop_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/branch"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/sweep"
	"github.com/fusevm/fuse/internal/playguard/sweeper"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/testkit"
)

// Times of a day.
const (
	dayKeep = 6 * time.Hour // of what the sweep sets aside, here
	quiet   = 9 * time.Hour
)

// seedEnv repeats one day.
const seedEnv = "FUSE_DAY_SEED"

// day is a world over a day: playgrounds of files and of branches on some
// marquees, and people, hosts and leaders that do as they like.
type day struct {
	*world
	r     *rand.Rand
	git   *repositories
	term  int64
	lead  *dayLeader
	all   []*dayLeader
	plays []*play
	made  int

	mu      sync.Mutex // of what hosts tell
	swept   map[string]time.Time
	counted map[string]int
}

// play is one playground, and what was done to it.
type play struct {
	id        model.PlaygroundID
	marquee   model.MarqueeID
	project   model.Project
	branch    bool
	destroyed bool      // a person asked for it
	forgotten time.Time // its record was dropped
}

// ruler is a store that takes nothing from who was overtaken.
type ruler struct {
	term
	by *dayLeader
}

func (r ruler) Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error) {
	if !r.by.holds.Load() {
		return state.Commit{}, fleet.ErrNotLeader
	}
	return r.term.Update(ctx, fn)
}

type dayLeader struct {
	*loop.Loop
	holds atomic.Bool
	stop  func()
}

// TestDay lets playgrounds live for a day of expiries, pushes, reboots, cut
// links, work that appears, changes of leader and sweeps, and then wants each to
// be what was asked of it. What must never happen is checked whenever a host is
// asked for something.
func TestDay(t *testing.T) {
	seeds := make([]uint64, testkit.Count(1, 20))
	for i := range seeds {
		seeds[i] = uint64(i + 1)
	}
	if text := os.Getenv(seedEnv); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{seed}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) {
			t.Logf("%s=%d repeats this day", seedEnv, seed)
			bubble(t, 0, func(w *world) {
				// Fewer passes than in life, so that a day costs seconds.
				w.policy.Period = time.Duration(testkit.Count(10, 1)) * time.Minute
				d := &day{world: w, r: rand.New(rand.NewPCG(seed, 2)), git: newRepositories(), swept: map[string]time.Time{}, counted: map[string]int{}}
				d.morning()
				for end := time.Now().Add(24 * time.Hour); time.Now().Before(end); {
					d.step()
					pass(time.Duration(d.r.IntN(300)) * time.Second)
				}
				d.evening()
				d.check()
				for _, l := range d.all {
					l.stop()
				}
				t.Log(d.counted)
			})
		})
	}
}

// morning makes everything.
func (d *day) morning() {
	for i := range dayMarquees {
		id := model.MarqueeID(fmt.Sprintf("m%d", i))
		s := d.world.marquee(id)
		s.git = d.git
		d.watch(id, s)
		if i%2 == 0 {
			d.update(func(tx *state.Tx) error {
				row, _ := records.Marquees.Get(tx, string(id))
				m := *row
				m.Sweep.Arming = model.Arming{By: "ann", Why: "day", At: tx.Now(), Until: tx.Now().Add(100 * time.Hour), Share: sweep.DefaultShare}
				return records.PutMarquee(tx, m)
			})
		}
	}
	d.takeOver()
	for i := range dayPlaygrounds {
		d.create(i)
		if i%10 == 0 {
			pass(time.Minute)
		}
	}
	pass(time.Hour)
}

// create asks for a playground: of files, or of a branch; a third of them end
// within the day.
func (d *day) create(i int) {
	p := &play{id: model.PlaygroundID(fmt.Sprintf("p%d", i)), marquee: model.MarqueeID(fmt.Sprintf("m%d", i%dayMarquees)), branch: i%2 == 0}
	project, err := model.NewProject("shop", p.id)
	if err != nil {
		d.t.Fatal(err)
	}
	p.project = project
	d.plays = append(d.plays, p)
	if p.branch {
		d.git.push("https://git.example.org/"+string(p.id), "main", composeOf("1"))
		d.update(func(tx *state.Tx) error {
			return records.PutPlayground(tx, records.Playground{
				Name: string(p.id), Owner: "ann", CreatedAt: tx.Now(), Source: records.Source{Repository: "https://git.example.org/" + string(p.id), Branch: "main", Checkout: "src"},
				Playground: model.Playground{ID: p.id, Marquee: p.marquee, Project: project, Intent: model.IntentUp, State: model.StatePending, StateSince: tx.Now(),
					Owed: model.ActionCreate, Queued: model.Queued{At: tx.Now()}},
			})
		})
		d.lead.Begin(p.marquee, p.id)
	} else {
		l := &leader{Loop: d.lead.Loop, world: d.world}
		d.ask(l, p.marquee, p.id, version("1"))
	}
	if i%3 == 0 {
		d.change(p, func(tx *state.Tx, row *records.Playground) {
			row.Expiry = model.Until(tx.Now().Add(time.Duration(2+d.r.IntN(18))*time.Hour), tx.Now())
		})
	}
}

// change writes to a record, if there is one.
func (d *day) change(p *play, fn func(tx *state.Tx, row *records.Playground)) {
	d.t.Helper()
	d.update(func(tx *state.Tx) error {
		row, ok := records.Playgrounds.Get(tx, string(p.id))
		if !ok {
			return nil
		}
		q := *row
		fn(tx, &q)
		return records.PutPlayground(tx, q)
	})
}

// takeOver begins a term: a process with all that a server has for Playguard.
// The leader before does not notice at once that its lease is over.
func (d *day) takeOver() {
	if d.lead != nil {
		d.lead.holds.Store(false)
	}
	for len(d.all) > 1 { // only the last of those that were overtaken is still there
		d.all[0].stop()
		d.all = d.all[1:]
	}
	d.term++
	l := &dayLeader{}
	l.holds.Store(true)
	store, log := ruler{term{d.store, d.term}, l}, slog.New(slog.DiscardHandler)
	follower := branch.New(branch.Config{
		Store: store, Sealer: d.sealer, Installation: inst, Policy: d.policy, Logger: log,
		Host:  func(m records.Marquee) branch.Git { return d.sims[m.ID] },
		Begin: func(m model.MarqueeID, p model.PlaygroundID) { l.Begin(m, p) }, Kick: func(m model.MarqueeID) { l.Kick(m) },
	})
	worker := work.New(work.Config{
		Store: store, Sealer: d.sealer, Installation: inst, Policy: d.policy, Logger: log, Maker: follower,
		Lease: func() (time.Duration, error) {
			if !l.holds.Load() {
				return 0, errors.New("another server leads")
			}
			return time.Minute, nil
		},
	})
	follower.Worker = worker
	policy := sweep.DefaultPolicy()
	policy.Keep = dayKeep
	sweeps := sweeper.New(sweeper.Config{Store: store, Worker: worker, Policy: policy, Logger: log, Kick: func(m model.MarqueeID) { l.Kick(m) }})
	l.Loop = loop.New(loop.Config{
		Store: store, Policy: d.policy, Logger: log, Host: func(m records.Marquee) work.Host { return d.sims[m.ID] }, Worker: worker,
		Before: []loop.Phase{follower.Phase()}, After: []loop.Phase{sweeps.Phase()}, Figures: d.figures,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	l.stop = func() {
		cancel()
		if err := <-done; err != nil {
			d.t.Error(err)
		}
	}
	d.lead, d.all = l, append(d.all, l)
	synctest.Wait()
}

// figures holds each pass to its budgets.
func (d *day) figures(s loop.Summary) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for act, n := range s.Acts {
		d.counted[act] += n
	}
	if n := s.Acts["to_pending"] + s.Acts["run_up"]; n > d.policy.RolloutsPerPass {
		d.t.Errorf("%d rollouts in a pass over %s: %v", n, s.Marquee, s.Acts)
	}
	if n := s.Acts["run_reclaim"]; n > d.policy.ReclaimsPerPass {
		d.t.Errorf("%d reclaims in a pass over %s", n, s.Marquee)
	}
}

// watch is what must never happen, checked whenever a host is asked for
// something.
func (d *day) watch(id model.MarqueeID, s *sim) {
	durable := s.begun
	s.begun = func(r runner.Request) {
		d.mu.Lock()
		d.counted["op_"+string(r.Verb.Kind())]++
		d.mu.Unlock()
		switch r.Verb.Kind() {
		case model.OpSweep, model.OpPurge, model.OpRestore:
			d.sweeping(id, r)
			return
		}
		durable(r)
		p, _ := d.get(r.Playground)
		if n := p.Repairs.Within(time.Now(), d.policy.RepairWindow); n > d.policy.RepairTries {
			d.t.Errorf("%d repairs of %s within %s", n, p.ID, d.policy.RepairWindow)
		}
		play := d.play(r.Playground)
		switch r.Verb.Kind() {
		case model.OpReclaim:
			if !p.Expiry.Due(time.Now(), d.policy) {
				d.t.Errorf("%s is taken away before its time: %+v", p.ID, p.Expiry)
			}
		case model.OpDestroy:
			s.set(func(s *sim) {
				if found := s.projects[p.Project.String()]; found != nil && found.work != nil && found.work.dirty && !play.destroyed {
					d.t.Errorf("%s holds work and is destroyed: %+v", p.ID, p)
				}
			})
		}
	}
}

// sweeping checks what is asked for by the sweep.
func (d *day) sweeping(id model.MarqueeID, r runner.Request) {
	m := d.row(id)
	_, recorded := d.get(r.Playground)
	d.mu.Lock()
	defer d.mu.Unlock()
	since := d.play(r.Playground).forgotten
	switch {
	case m.Sweep.Op.ID != r.Op || m.Sweep.Arming.At.IsZero() || len(r.Verb.Volumes()) != 0:
		d.t.Errorf("%s on %s is not claimed, or nobody armed it: %+v", r.Verb.Kind(), id, m.Sweep)
	case r.Verb.Kind() == model.OpSweep && (recorded || since.IsZero() || time.Since(since) < time.Hour):
		d.t.Errorf("%s is swept: recorded %v, forgotten at %s", r.Playground, recorded, since)
	case r.Verb.Kind() == model.OpPurge && time.Since(d.swept[r.Project.String()]) < dayKeep:
		d.t.Errorf("%s is purged %s after it was set aside", r.Project, time.Since(d.swept[r.Project.String()]))
	}
	if r.Verb.Kind() == model.OpSweep {
		d.swept[r.Project.String()] = time.Now()
	}
}

func (d *day) play(id model.PlaygroundID) *play {
	for _, p := range d.plays {
		if p.id == id {
			return p
		}
	}
	return &play{}
}

// step is one thing that happens.
func (d *day) step() {
	p := d.plays[d.r.IntN(len(d.plays))]
	s := d.sims[model.MarqueeID(fmt.Sprintf("m%d", d.r.IntN(dayMarquees)))]
	for i := range dayMarquees { // nothing is broken for long
		if sick := d.sims[model.MarqueeID(fmt.Sprintf("m%d", i))]; d.r.IntN(6) == 0 {
			sick.set(func(s *sim) { s.dead, s.hangs, s.deaf = false, false, false })
		}
	}
	row, there := d.get(p.id)
	l := &leader{Loop: d.lead.Loop, world: d.world}
	switch d.r.IntN(20) {
	case 0, 1, 2, 3:
		if p.branch {
			d.made++
			version := strconv.Itoa(d.made)
			if d.r.IntN(6) == 0 {
				version = "bad" + version
			}
			d.git.push("https://git.example.org/"+string(p.id), "main", composeOf(version))
		}
	case 4, 5, 6, 7:
		d.hurt(p, func(found *project) {
			if found.work != nil {
				found.work.dirty = !found.work.dirty
			}
		})
	case 8:
		s.set(func(s *sim) {
			s.boot, s.daemon = fmt.Sprint("boot", d.r.Uint32()), time.Now()
			for _, p := range s.projects {
				s.end(p, 0)
			}
		})
	case 9, 10:
		s.set(func(s *sim) { s.dead = !s.dead })
	case 11:
		s.set(func(s *sim) { s.hangs = !s.hangs })
	case 12:
		s.set(func(s *sim) { s.deaf = !s.deaf })
	case 13:
		d.hurt(p, func(found *project) { s.end(found, 1) })
	case 14:
		if d.r.IntN(4) == 0 {
			d.takeOver()
		}
	case 15:
		actions := []model.Action{model.ActionStop, model.ActionStart, model.ActionRollout, model.ActionHardRestart}
		if a := actions[d.r.IntN(len(actions))]; there && row.State.Allows(a) {
			d.act(l, p.id, a)
		}
	case 16:
		if there && row.State.Allows(model.ActionDestroy) && d.r.IntN(3) == 0 {
			p.destroyed = true
			d.act(l, p.id, model.ActionDestroy)
		}
	case 17, 18:
		if there && !row.Expiry.IsZero() {
			d.change(p, func(tx *state.Tx, row *records.Playground) { // as the service does
				if row.Expiry = row.Expiry.Extended(time.Hour, tx.Now()); row.State == model.StateHasChanges {
					row.State, row.StateSince, row.Reason, row.Attention = model.StateRunning, tx.Now(), "it was given more time", ""
				}
			})
		}
	case 19:
		if there && row.State == model.StateRunning && row.Op.IsZero() && d.orphans(p.marquee) < 2 {
			p.forgotten = time.Now()
			d.update(func(tx *state.Tx) error { return records.DeletePlayground(tx, p.id) })
		}
	}
}

func (d *day) hurt(p *play, fn func(found *project)) {
	d.sims[p.marquee].set(func(s *sim) {
		if found := s.projects[p.project.String()]; found != nil {
			fn(found)
		}
	})
}

// orphans counts what is on a marquee and in no record.
func (d *day) orphans(m model.MarqueeID) (n int) {
	for _, p := range d.plays {
		if p.marquee == m && !p.forgotten.IsZero() {
			d.hurt(p, func(found *project) {
				if found.there() {
					n++
				}
			})
		}
	}
	return n
}

// evening ends every fault, and gives the loop the time that it needs.
func (d *day) evening() {
	for _, s := range d.sims {
		s.set(func(s *sim) { s.dead, s.hangs, s.deaf = false, false, false })
	}
	pass(quiet)
}

// check is what has to be true once nothing happens any more.
func (d *day) check() {
	ends := map[string]int{}
	for _, p := range d.plays {
		row, there := d.get(p.id)
		s := d.sims[p.marquee]
		runs := s.running(p.project)
		var had project
		s.set(func(s *sim) {
			if found := s.projects[p.project.String()]; found != nil {
				had = *found
			}
		})
		var bad, end string
		switch {
		case there:
			bad, end = d.asked(p, row, runs, had), string(row.State)
		case !p.forgotten.IsZero():
			bad, end = d.forgotten(p, runs, had)
		default:
			end = "gone"
			if len(had.boxes) > 0 || had.there() || len(had.volumes) > 0 {
				bad = fmt.Sprintf("it has no record, and left %+v", had)
			}
		}
		ends[end]++
		if bad != "" {
			d.t.Errorf("%s on %s, %s (%s): %s", p.id, p.marquee, row.State, row.Reason, bad)
			for _, step := range d.lead.Decisions(p.id)[:min(3, len(d.lead.Decisions(p.id)))] {
				d.t.Logf("  %d times, last %s: %s", step.Count, step.Last.Format("15:04:05"), step.Step)
			}
		}
	}
	for _, must := range []string{"running", "gone", "has_changes", "purged", "left alone"} {
		if dayHasAll && ends[must] == 0 {
			d.t.Errorf("no playground ended %s: %v", must, ends)
		}
	}
	d.t.Log(ends)
}

// asked compares a playground with its record.
func (d *day) asked(p *play, row records.Playground, runs map[string]string, had project) string {
	if !row.Op.IsZero() || row.Step != "" {
		return "something is still at work on it"
	}
	switch row.State {
	case model.StateRunning, model.StateHasChanges:
		for _, svc := range row.Services {
			// What is parked is never brought up again: it may have been down by a reboot.
			if runs[svc.Name] != svc.Digest && (row.State == model.StateRunning || len(had.boxes) == 0) {
				return fmt.Sprintf("runs %v, want %v", runs, row.Services)
			}
		}
		due := row.Expiry.Due(time.Now(), d.policy)
		if due != (row.State == model.StateHasChanges) || due && (had.work == nil || !had.work.dirty) {
			return fmt.Sprintf("its time is over: %v; its checkout %+v", due, had.work)
		}
		head := d.git.head(row.Source.Repository, "main")
		if p.branch && row.State == model.StateRunning && row.Source.Head != head && !had.work.dirty {
			return fmt.Sprintf("it is at %s, its branch at %s, and nothing is in the way", row.Source.Head, head)
		}
	case model.StateStopped:
		if len(runs) > 0 {
			return fmt.Sprintf("runs %v", runs)
		}
	case model.StateError:
		if row.Failure.Temporary() {
			return "a temporary failure did not end"
		}
	default:
		held := row.State == model.StatePending && had.work != nil && had.work.dirty // a replacement waits for the work in it
		if !held {
			return "it does not end"
		}
	}
	return ""
}

// forgotten says what became of a playground whose record was dropped: where
// the sweep is armed and nothing protects it, its volume is all that is left.
func (d *day) forgotten(p *play, runs map[string]string, had project) (bad, end string) {
	if !slices.Contains(had.volumes, string(p.id)+"_data") {
		bad = "its volume is gone"
	}
	armed := !d.row(p.marquee).Sweep.Arming.At.IsZero()
	dirty := had.work != nil && had.work.dirty
	switch {
	case had.aside != nil && had.aside.work != nil && had.aside.work.dirty:
		return bad, "kept aside"
	case had.there():
		if armed && !dirty {
			bad = fmt.Sprintf("it is still there: %+v; %+v", had, d.row(p.marquee).Sweep)
		}
		return bad, "left alone"
	case len(runs) > 0 || had.aside != nil || !armed:
		bad = fmt.Sprintf("half of it is there, armed %v: %+v", armed, had)
	}
	return bad, "purged"
}
