package converge_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// aged tracks a VM of a certain age that runs on its host.
func (w *world) aged(hostID, uid string, age time.Duration, spec fleet.Spec) {
	w.track(fleet.VM{UID: uid, HostID: hostID, State: fleet.VMStateRunning, Spec: spec, CreatedAt: time.Now().Add(-age), Probed: true})
	w.boot(hostID, "fuse-"+uid, uid)
}

// count is how many VMs a host has.
func (w *world) count(hostID string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.hosts[hostID].vms)
}

// ended is "RULE" of a life that ended.
func (w *world) ended(uid string) string {
	if life := w.life(uid); life != nil {
		return life.Reason.Rule
	}
	return ""
}

// A task over its ceiling is suspected in the first cycle, with an event, and
// failed in the second: the ceiling plus one interval, 30 s of warning.
func TestStuckTaskFailsOneIntervalAfterItsWarning(t *testing.T) {
	scenario(t, []string{"h1"}, func(w *world) {
		w.aged("h1", "old", 2*time.Hour, fleet.Spec{})
		w.aged("h1", "own", 2*time.Hour, fleet.Spec{MaxRuntime: 3 * time.Hour})
		w.aged("h1", "soon", 2*time.Hour-45*s, fleet.Spec{})
	}, func(w *world) {
		w.until(s)
		if got := w.events(fleet.EventTaskStuckSuspected); !slices.Equal(got, []string{"old old"}) || w.ended("old") != "" {
			w.t.Errorf("after the first cycle: %v, ended %q", got, w.ended("old"))
		}
		w.until(31 * s)
		if got := w.ended("old"); got != fleet.RuleStuckTask || w.task("old").RunStatus != fleet.TaskRunFailed {
			w.t.Errorf("after the second: %q, %+v", got, w.task("old"))
		}
		w.until(61 * s) // 45 s, seen at 60
		if got := w.events(fleet.EventTaskStuckSuspected); !slices.Equal(got, []string{"old old", "soon soon"}) || w.ended("soon") != "" {
			w.t.Errorf("at its ceiling: %v, ended %q", got, w.ended("soon"))
		}
		w.until(91 * s)
		if w.ended("soon") != fleet.RuleStuckTask || w.ended("own") != "" {
			w.t.Errorf("soon %q, own %q", w.ended("soon"), w.ended("own"))
		}
		sum := w.summaries()
		if sum[0].StuckTasksSuspected != 1 || sum[1].StuckTasksFailed != 1 {
			w.t.Errorf("counted %+v, %+v", sum[0], sum[1])
		}
	})
}

// mute fails every write of news for as long as a test wants.
type mute struct {
	converge.Store
	on atomic.Bool
}

func (m *mute) Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error) {
	if m.on.Load() {
		return state.Commit{}, errors.New("not written")
	}
	return m.Store.Update(ctx, fn)
}

// Nobody is ended whose warning did not get out, and a verdict that was not told
// is told later.
func TestNewsThatDidNotGetOutIsToldLater(t *testing.T) {
	var m mute
	scenario(t, []string{"h1"}, func(w *world) {
		w.aged("h1", "old", 2*time.Hour, fleet.Spec{})
		w.aged("h1", "idle", 3*time.Hour, fleet.Spec{MaxRuntime: 99 * time.Hour, IdleTimeout: s})
		w.on("h1", func(h *host) {
			h.answerAt = s
			vm := h.vms["idle"]
			vm.Health = &fleet.HealthStatus{State: fleet.HealthFailing}
			h.vms["idle"] = vm
		})
		m.Store = w.store
	}, func(w *world) {
		w.until(s / 2) // recovery is over
		m.on.Store(true)
		w.until(35 * s) // twice over the ceiling
		m.on.Store(false)
		w.until(65 * s)
		for typ, want := range map[string]string{
			fleet.EventTaskStuckSuspected: "old old", fleet.EventVMIdleSuspected: "fuse-idle idle", fleet.EventVMHealthChanged: "fuse-idle idle",
		} {
			if got := w.events(typ); !slices.Equal(got, []string{want}) {
				w.t.Errorf("told %s of %v, want %s", typ, got, want)
			}
		}
		if w.ended("old")+w.ended("idle") != "" {
			w.t.Errorf("ended in the cycle of the warning: old %q, idle %q", w.ended("old"), w.ended("idle"))
		}
		w.until(95 * s)
		if w.ended("old") != fleet.RuleStuckTask || w.ended("idle") != fleet.RuleIdleTimeout {
			w.t.Errorf("ended: old %q, idle %q", w.ended("old"), w.ended("idle"))
		}
	}, func(cfg *converge.Config) { cfg.Store = &m })
}

// Idleness goes by the clock of uses, which begins anew with the process; what
// is open counts however quiet it is.
func TestIdleEnvironmentsEnd(t *testing.T) {
	var open atomic.Int64
	var last atomic.Pointer[time.Time]
	scenario(t, []string{"h1"}, func(w *world) {
		open.Store(1)
		for _, uid := range []string{"used", "never"} {
			w.aged("h1", uid, time.Hour, fleet.Spec{MaxRuntime: 99 * time.Hour, IdleTimeout: 2 * time.Minute})
		}
		w.aged("h1", "without", time.Hour, fleet.Spec{MaxRuntime: 99 * time.Hour})
	}, func(w *world) {
		w.until(119 * s)
		if got := w.events(fleet.EventVMIdleSuspected); len(got) > 0 {
			w.t.Errorf("suspected before a window of this process is over: %v", got)
		}
		w.until(121 * s)
		if got := w.events(fleet.EventVMIdleSuspected); !slices.Equal(got, []string{"fuse-never never"}) {
			w.t.Errorf("suspected %v", got)
		}
		w.until(10 * time.Minute)
		if w.ended("never") != fleet.RuleIdleTimeout || w.ended("used") != "" || w.ended("without") != "" {
			w.t.Errorf("never %q, used %q, without %q", w.ended("never"), w.ended("used"), w.ended("without"))
		}
		now := time.Now() // the session closes: the window begins again
		last.Store(&now)
		open.Store(0)
		w.until(12*time.Minute - s)
		if got := w.events(fleet.EventVMIdleSuspected); len(got) != 1 {
			w.t.Errorf("the window did not restart when the session closed: %v", got)
		}
		w.until(13 * time.Minute)
		if w.ended("used") != fleet.RuleIdleTimeout {
			w.t.Errorf("used %q", w.ended("used"))
		}
	}, func(cfg *converge.Config) {
		cfg.Use = func(uid string) converge.Use {
			if uid != "used" {
				return converge.Use{}
			}
			use := converge.Use{Open: int(open.Load())}
			if at := last.Load(); at != nil {
				use.Last = *at
			}
			return use
		}
	})
}

// A use between the decision and the act is seen: the step is dropped.
func TestAUseBeforeTheActSavesIt(t *testing.T) {
	var open atomic.Int64
	scenario(t, []string{"h1"}, func(w *world) {
		w.aged("h1", "a", time.Hour, fleet.Spec{MaxRuntime: 99 * time.Hour, IdleTimeout: time.Minute})
	}, func(w *world) {
		w.until(85 * s)
		if got := w.events(fleet.EventVMIdleSuspected); len(got) != 1 {
			w.t.Errorf("suspected %v", got)
		}
		// The host's lane is full for a while when the second strike falls.
		w.on("h1", func(h *host) { h.destroyTakes = 20 * s })
		for i := range converge.DefaultStepsPerHost {
			w.boot("h1", fmt.Sprintf("fuse-%d", i), fmt.Sprint("u", i))
		}
		w.until(100 * s)
		open.Store(1)
		w.until(130 * s)
		if sum, _ := last(w); w.ended("a") != "" || sum.Dropped != 1 {
			w.t.Errorf("ended %q, dropped %d", w.ended("a"), sum.Dropped)
		}
	}, func(cfg *converge.Config) {
		cfg.Use = func(string) converge.Use { return converge.Use{Open: int(open.Load())} }
	})
}

// destroying calls something in the middle of each destroy.
type destroying struct {
	converge.Destroyer
	meanwhile func(fleet.Reason)
}

func (d destroying) DestroyLife(ctx context.Context, id, uid string, reason fleet.Reason) error {
	d.meanwhile(reason)
	return d.Destroyer.DestroyLife(ctx, id, uid, reason)
}

// From the last look at its uses to its end no use of an idle environment can
// begin; one that is ended for its age may be used until then.
func TestAnIdleEnvironmentIsShutWhileItEnds(t *testing.T) {
	var shut atomic.Int64
	var during []string
	scenario(t, []string{"h1"}, func(w *world) {
		w.aged("h1", "idle", time.Hour, fleet.Spec{MaxRuntime: 99 * time.Hour, IdleTimeout: s})
		w.aged("h1", "old", 3*time.Hour, fleet.Spec{})
	}, func(w *world) {
		w.until(91 * s)
		if slices.Sort(during); !slices.Equal(during, []string{"idle_timeout 1", "stuck_task 0"}) || shut.Load() != 0 {
			w.t.Errorf("while they ended %v, afterwards %d are shut", during, shut.Load())
		}
	}, func(cfg *converge.Config) {
		cfg.StepsPerHost, cfg.Destroyer = 1, destroying{cfg.Destroyer, func(r fleet.Reason) { during = append(during, fmt.Sprint(r.Rule, " ", shut.Load())) }}
		cfg.Shut = func(string) func() {
			shut.Add(1)
			return func() { shut.Add(-1) }
		}
	})
}

// pauser is a converge.Pauser that has to wait before it may decide.
type pauser struct {
	w       *world
	waits   func()
	during  func() // between the last look and the decision
	mu      sync.Mutex
	decided []string
}

func (p *pauser) paused() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.decided)
}

func (p *pauser) PauseLife(_ context.Context, id, uid string, reason fleet.Reason, still func() (func(), error)) error {
	p.waits()
	done, err := still()
	if err != nil {
		return err
	}
	p.during()
	p.w.update(func(tx *state.Tx) error {
		row, _ := tx.VMs().GetUID(uid)
		next := *row
		next.Paused = &fleet.Standstill{Activity: fleet.ActivityPaused, Reason: reason, At: tx.Now(), Op: "o"}
		return tx.PutVM(next)
	})
	done()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decided = append(p.decided, id+" "+reason.Rule)
	return nil
}

// One that asked for it is paused instead of ended. Uses are looked at once more
// when nothing else is being done with it any more, and none begins from then to
// the decision; while it waits they do.
func TestAnIdleEnvironmentIsPaused(t *testing.T) {
	var shut, open, whileWaiting, whileDeciding atomic.Int64
	var comes atomic.Bool // somebody, while it waits
	p := &pauser{
		waits: func() {
			whileWaiting.Add(shut.Load())
			if comes.Load() {
				open.Store(1)
			}
		},
		during: func() { whileDeciding.Add(shut.Load()) },
	}
	scenario(t, []string{"h1"}, func(w *world) {
		p.w = w
		w.aged("h1", "a", time.Hour, fleet.Spec{MaxRuntime: 99 * time.Hour, IdleTimeout: s, OnIdle: fleet.IdlePause})
	}, func(w *world) {
		comes.Store(true)
		w.until(61 * s)
		if sum, _ := last(w); len(p.paused()) != 0 || sum.Dropped == 0 || w.row("a").Paused != nil {
			w.t.Errorf("paused %v, dropped %d", p.paused(), sum.Dropped)
		}
		comes.Store(false)
		open.Store(0)
		w.until(5 * time.Minute)
		if !slices.Equal(p.paused(), []string{"fuse-a " + fleet.RuleIdleTimeout}) || w.ended("a") != "" {
			w.t.Errorf("paused %v, ended %q", p.paused(), w.ended("a"))
		}
		if whileWaiting.Load() != 0 || whileDeciding.Load() != 1 || shut.Load() != 0 {
			w.t.Errorf("shut %d while it waited, %d while it was decided, %d afterwards", whileWaiting.Load(), whileDeciding.Load(), shut.Load())
		}
	}, func(cfg *converge.Config) {
		cfg.Pauser = p
		cfg.Use = func(string) converge.Use { return converge.Use{Open: int(open.Load())} }
		cfg.Shut = func(string) func() {
			shut.Add(1)
			return func() { shut.Add(-1) }
		}
	})
}

// The hold hook is asked before the second strike acts.
func TestAHeldEnvironmentGoesOn(t *testing.T) {
	var held atomic.Bool
	held.Store(true)
	scenario(t, []string{"h1"}, func(w *world) {
		w.aged("h1", "a", 3*time.Hour, fleet.Spec{})
	}, func(w *world) {
		w.until(5 * time.Minute)
		if sum, _ := last(w); w.ended("a") != "" || sum.Held != 1 {
			w.t.Errorf("ended %q, held %d", w.ended("a"), sum.Held)
		}
		held.Store(false)
		w.until(5*time.Minute + 31*s)
		if w.ended("a") != fleet.RuleStuckTask {
			w.t.Errorf("not held any more, ended %q", w.ended("a"))
		}
	}, func(cfg *converge.Config) {
		cfg.Hold = func(*fleet.VM) string { return map[bool]string{true: "somebody is at it"}[held.Load()] }
	})
}

// Verdicts come with the listing, are told when they change, and end nothing. A
// restart of the process forgets them until the guests are read again.
func TestVerdictsAreToldAndEndNothing(t *testing.T) {
	verdict := func(w *world, state fleet.HealthState) {
		w.on("h1", func(h *host) {
			vm := h.vms["a"]
			if vm.Health = nil; state != "" {
				vm.Health = &fleet.HealthStatus{State: state, Message: "exit 1"}
			}
			h.vms["a"] = vm
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1")
		w.aged("h1", "a", 0, fleet.Spec{})
		loop := w.run()
		row := func() *fleet.VM { return w.row("a") }
		w.until(s)
		if _, known := loop.Health(row()); known {
			t.Error("a verdict that no guest gave")
		}
		for i, state := range []fleet.HealthState{fleet.HealthStarting, fleet.HealthFailing, "", fleet.HealthFailing} {
			verdict(w, state)
			w.until(time.Duration(i+1)*30*s + s)
			want := state
			if want == "" {
				want = fleet.HealthFailing // a guest that cannot be read keeps the last one
			}
			if h, ok := loop.Health(row()); !ok || h.State != want {
				t.Errorf("step %d: %+v, want %s", i, h, want)
			}
		}
		w.until(20 * time.Minute)
		if got := w.events(fleet.EventVMHealthChanged); len(got) != 2 {
			t.Errorf("told %v", got)
		}
		if sum, _ := last(w); w.ended("a") != "" || sum.HealthChecked != 1 || sum.HealthFailing != 1 {
			t.Errorf("ended %q, counted %+v", w.ended("a"), sum)
		}
		if err := loop.end(); err != nil {
			t.Error(err)
		}
		verdict(w, "")
		again := w.run()
		w.until(21 * time.Minute)
		if _, known := again.Health(row()); known {
			t.Error("a verdict outlived the process")
		}
		if err := again.end(); err != nil {
			t.Error(err)
		}
	})
}

// A pause is durable, stops what nobody asked for, and lets the rest go on.
func TestAPauseOutlivesTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1", "h2")
		loop := w.run()
		w.until(s)
		if _, err := loop.Pause(t.Context(), "nowhere", "user:ann", ""); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("an unknown host: %v", err)
		}
		if _, err := loop.Pause(t.Context(), "h1", "user:ann", strings.Repeat("x", 513)); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("a long reason: %v", err)
		}
		p, err := loop.Pause(t.Context(), "h1", "user:ann", "new disks")
		if err != nil || len(p.Hosts) != 1 || p.All != nil {
			t.Fatal(p, err)
		}
		if err := loop.end(); err != nil {
			t.Error(err)
		}
		for _, h := range []string{"h1", "h2"} {
			w.boot(h, "fuse-orphan"+h, "orphan"+h)
			w.aged(h, "old"+h, 3*time.Hour, fleet.Spec{})
		}
		w.track(fleet.VM{UID: "asked", HostID: "h1", State: fleet.VMStateDestroying})
		w.boot("h1", "fuse-asked", "asked")
		loop = w.run()
		w.until(2 * time.Minute)
		if !w.has("h1", "orphanh1") || w.ended("oldh1") != "" {
			t.Error("something was destroyed on the paused host")
		}
		if w.has("h2", "orphanh2") || w.ended("oldh2") == "" || w.has("h1", "asked") {
			t.Error("the rest did not go on")
		}
		if sum, _ := last(w); sum.Withheld != 2 {
			t.Errorf("withheld %d", sum.Withheld)
		}
		st, err := loop.Status()
		if err != nil || st.Pauses.Hosts["h1"].Actor != "user:ann" || st.Last == nil {
			t.Errorf("%+v %v", st, err)
		}
		if p, err := loop.Resume(t.Context(), "h1", "user:bob"); err != nil || p.Any() {
			t.Error(p, err)
		}
		w.until(3 * time.Minute)
		if w.has("h1", "orphanh1") || w.ended("oldh1") == "" {
			t.Error("what waited did not go on")
		}
		paused, resumed := w.events(fleet.EventReconcilePaused), w.events(fleet.EventReconcileResumed)
		if len(paused) != 1 || len(resumed) != 1 {
			t.Errorf("told %v, %v", paused, resumed)
		}
		if err := loop.end(); err != nil {
			t.Error(err)
		}
	})
}

// A step that was decided before a pause is not applied after it.
func TestAPauseStopsWhatIsDecidedAlready(t *testing.T) {
	scenario(t, []string{"h1"}, func(w *world) {
		w.hosts["h1"].destroyTakes = 20 * s
		for i := range 12 {
			w.boot("h1", fmt.Sprintf("fuse-%d", i), fmt.Sprint("u", i))
		}
	}, func(w *world) {
		w.until(5 * s) // four are at work, eight in line
		w.update(func(tx *state.Tx) error {
			return converge.PutPauses(tx, fleet.Pauses{All: &fleet.Pause{Actor: "user:ann", At: tx.Now()}})
		})
		w.until(3 * time.Minute)
		if n := w.count("h1"); n != 8 {
			w.t.Errorf("%d are left, want 8", n)
		}
	})
}

// leaving has the loop told to end at the moment at which an orphan is gone.
type leaving struct {
	converge.OrphanKiller
	end func()
}

func (l leaving) DestroyOrphan(ctx context.Context, hostID, id, uid string) error {
	err := l.OrphanKiller.DestroyOrphan(ctx, hostID, id, uid)
	go l.end()
	<-ctx.Done()
	return err
}

// What is destroyed is told, also when the server stops right then.
func TestAnEndIsToldWhileTheLoopEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1")
		w.boot("h1", "fuse-x", "X")
		end := make(chan func() error, 1)
		loop := w.run(func(cfg *converge.Config) {
			cfg.OrphanKiller = leaving{cfg.OrphanKiller, func() { _ = (<-end)() }}
		})
		end <- loop.end
		w.until(s)
		if err := loop.end(); err != nil {
			t.Error(err)
		}
		if got := w.events(fleet.EventVMOrphanDestroy); w.count("h1") != 0 || !slices.Equal(got, []string{"fuse-x X"}) {
			t.Errorf("told %v, %d are left", got, w.count("h1"))
		}
	})
}

// When a budget is spent the rest waits, and that is told once.
func TestASpentBudgetIsToldOnce(t *testing.T) {
	scenario(t, []string{"h1"}, func(w *world) {
		for i := range 10 {
			w.boot("h1", fmt.Sprintf("fuse-%d", i), fmt.Sprint("u", i))
		}
	}, func(w *world) {
		for i, want := range []int{8, 6, 5, 5, 5} {
			w.until(time.Duration(i)*30*s + s)
			if n := w.count("h1"); n != want {
				w.t.Errorf("after cycle %d: %d left, want %d", i, n, want)
			}
		}
		if got := w.events(fleet.EventReconcileBudget); len(got) != 1 {
			w.t.Errorf("told %v", got)
		}
		w.until(61 * time.Minute)
		if n := w.count("h1"); n != 0 {
			w.t.Errorf("an hour later %d are left", n)
		}
	}, func(cfg *converge.Config) { cfg.Limits.PerCycle, cfg.Limits.PerHour = 2, 5 })
}

// A server that starts again and again destroys no more in an hour than one
// that does not, whatever the pass.
func TestARestartGivesNoFreshBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1")
		for i := range 10 {
			w.boot("h1", fmt.Sprintf("fuse-%d", i), fmt.Sprint("u", i))
			w.aged("h1", fmt.Sprint("old", i), 3*time.Hour, fleet.Spec{})
		}
		for i, want := range []int{13, 10, 10} { // five of either, the orphans first
			loop := w.run(func(cfg *converge.Config) {
				cfg.Limits.PerCycle, cfg.Limits.PerHour, cfg.Events = 4, 5, w.store
			})
			w.until(time.Duration(i)*10*time.Minute + 40*s)
			if n := w.count("h1"); n > want {
				t.Errorf("process %d: %d are left, want %d", i, n, want)
			}
			if n := w.count("h1"); n < 10 {
				t.Errorf("process %d: %d are left: more than the budgets", i, n)
			}
			if i == 2 {
				w.until(62 * time.Minute)
				if n := w.count("h1"); n != 0 {
					t.Errorf("an hour later %d are left", n)
				}
			}
			if err := loop.end(); err != nil {
				t.Error(err)
			}
		}
	})
}

// A preview says what the next cycle would do and changes nothing at all.
func TestAPreviewHasNoEffect(t *testing.T) {
	scenario(t, []string{"dead", "h1"}, func(w *world) { w.hosts["dead"].down = true }, func(w *world) {
		w.until(s)
		w.boot("h1", "fuse-x", "X")
		w.aged("h1", "old", 3*time.Hour, fleet.Spec{})
		w.update(func(tx *state.Tx) error {
			return converge.PutPauses(tx, fleet.Pauses{Hosts: map[string]fleet.Pause{"dead": {Actor: "user:ann"}}})
		})
		revision, seq := w.store.Head()
		for range 5 { // strikes of previews do not add up
			p, err := w.preview()
			if err != nil {
				w.t.Fatal(err)
			}
			var got []string
			for _, step := range p.Steps {
				got = append(got, string(step.Kind)+" "+step.UID)
				if step.Evidence == "" || step.Look == "" {
					w.t.Errorf("without evidence: %+v", step)
				}
			}
			if diff := cmp.Diff([]string{"orphan X", "stuck_suspected old"}, got); diff != "" {
				w.t.Error(diff)
			}
			if !slices.Equal(p.Summary.HostsUnseen, []string{"dead"}) || len(p.Summary.Hosts) != 2 {
				w.t.Errorf("%+v", p.Summary)
			}
		}
		if r, q := w.store.Head(); r != revision || q != seq || !w.has("h1", "X") || w.ended("old") != "" {
			w.t.Error("a preview had an effect")
		}
	})
}

func (w *world) preview() (converge.Preview, error) { return w.loop.Preview(context.Background()) }

// Every host's look is in the summary, in every cycle: which were not seen, and
// what each has.
func TestASummaryNamesEveryHost(t *testing.T) {
	scenario(t, []string{"half", "here", "gone"}, func(w *world) {
		w.hosts["gone"].down, w.hosts["half"].partial = true, true
		w.running("here", "a")
		w.running("here", "b")
		w.running("gone", "c")
	}, func(w *world) {
		w.until(s)
		sum, _ := last(w)
		got := map[string]string{}
		for _, h := range sum.Hosts {
			got[h.HostID] = fmt.Sprintf("%s %d tracked %d listed, %s", h.Quality, h.Tracked, h.Listed, h.Reason)
		}
		want := map[string]string{
			"half": "partial 0 tracked 0 listed, adopting", "here": "complete 2 tracked 2 listed, ", "gone": "unseen 1 tracked 0 listed, connection refused",
		}
		if !maps.Equal(got, want) || !slices.Equal(sum.HostsUnseen, []string{"gone", "half"}) || sum.TrackedVMs != 3 || sum.ProviderVMs != 2 {
			w.t.Errorf("%v, unseen %v, %d tracked, %d listed", got, sum.HostsUnseen, sum.TrackedVMs, sum.ProviderVMs)
		}
	})
}

// A collection without a service for it is refused, recorded and tried again
// with growing pauses; with one, it gets what was decided, and tells of it alone.
func TestCollectionsAreRefusedOrDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1")
		past := time.Now().Add(-time.Hour)
		for i, id := range []string{"s1", "s2"} {
			w.update(func(tx *state.Tx) error {
				return tx.PutSnapshot(fleet.Snapshot{
					SnapshotID: id, VMID: "fuse-a", HostID: "h1", State: fleet.SnapshotStateReady, Mode: fleet.SnapshotModeManual, Owner: "ann",
					CreatedAt: past.Add(time.Duration(i) * time.Minute), RetentionUntil: &past,
				})
			})
		}
		loop := w.run()
		w.until(2*time.Minute + s)
		failed := w.events(fleet.EventSnapshotGCFailed) // cycles 0, 1 and 3
		if len(failed) != 3 {
			t.Errorf("refused %v", failed)
		}
		if err := loop.end(); err != nil {
			t.Error(err)
		}
		done := &collector{w: w}
		loop = w.run(func(cfg *converge.Config) { cfg.Collector = done })
		w.until(3 * time.Minute)
		if got := w.events(fleet.EventSnapshotGCDeleted); !slices.Equal(got, []string{"s1 "}) || !slices.Equal(done.got, []string{"s1"}) {
			t.Errorf("deleted %v, asked for %v", got, done.got)
		}
		all, err := w.store.Events(context.Background(), state.EventQuery{})
		if err != nil {
			t.Error(err)
		}
		for _, e := range all { // told of its owner, host and environment, gone or not
			if e.EntityType == fleet.EntitySnapshot && (e.Owner != "ann" || e.HostID != "h1" || e.VMID != "fuse-a") {
				t.Errorf("%s is of owner %q, host %q, environment %q", e.Type, e.Owner, e.HostID, e.VMID)
			}
		}
		if err := loop.end(); err != nil {
			t.Error(err)
		}
	})
}

type collector struct {
	w   *world
	got []string
}

// Collect is a converge.Collector.
func (c *collector) Collect(_ context.Context, id string, revision uint64, _ fleet.Reason) error {
	c.got = append(c.got, id)
	c.w.update(func(tx *state.Tx) error {
		if row, ok := tx.Snapshots().Get(id); !ok || row.Revision != revision {
			c.w.t.Errorf("%s is not what was decided on: %+v", id, row)
		}
		tx.Emit(fleet.Event{
			EntityType: fleet.EntitySnapshot, EntityID: id, VMID: "fuse-a", HostID: "h1", Owner: "ann", Type: fleet.EventSnapshotGCDeleted,
			Reason: &fleet.Reason{Actor: fleet.ActorReconcile, Rule: fleet.RuleRetention},
		})
		return tx.DeleteSnapshot(id)
	})
	return nil
}

// One of ten hosts is dead and one answers after a minute: the other eight are
// reconciled at the very instants at which they are without the two.
func TestADeadAndASlowHostCostTheOthersNothing(t *testing.T) {
	ends := func(hosts ...string) map[string][]time.Duration {
		out := map[string][]time.Duration{}
		scenario(t, hosts, func(w *world) {
			for _, id := range hosts {
				w.hosts[id].destroyTakes, w.hosts[id].answerAt = 100*time.Millisecond, 20*time.Millisecond
				w.boot(id, "fuse-"+id, "orphan-"+id)
				w.aged(id, "old-"+id, 3*time.Hour, fleet.Spec{})
			}
			if h := w.hosts["dead"]; h != nil {
				h.down = true
				w.hosts["slow"].answerAt = time.Minute
			}
		}, func(w *world) {
			w.until(3 * time.Minute)
			for i := range 8 {
				id := fmt.Sprint("h", i)
				out[id] = append(w.destroyTimes("orphan-"+id), w.destroyTimes("old-"+id)...)
			}
			if w.ended("old-dead")+w.ended("old-slow") != "" {
				w.t.Error("something ended on a host that was not seen")
			}
		})
		return out
	}
	eight := []string{"h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7"}
	alone, beside := ends(eight...), ends(append([]string{"dead", "slow"}, eight...)...)
	if diff := cmp.Diff(alone, beside); diff != "" {
		t.Error(diff)
	}
	if want := []time.Duration{20 * time.Millisecond, 30*s + 20*time.Millisecond}; !slices.Equal(alone["h0"], want) {
		t.Errorf("ended at %v, want %v", alone["h0"], want)
	}
}
