package converge_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
)

const s = time.Second

func TestCyclesKeepAFixedClock(t *testing.T) {
	scenario(t, []string{"h1"}, func(w *world) { w.hosts["h1"].answerAt = 7 * s }, func(w *world) {
		w.until(2 * time.Minute)
		if diff := cmp.Diff([]time.Duration{0, 30 * s, 60 * s, 90 * s, 120 * s}, w.lookTimes("h1")); diff != "" {
			t.Error(diff)
		}
	})
}

// A cycle that takes longer than the interval leaves the ticks in it out.
func TestTicksAreNotCaughtUpWith(t *testing.T) {
	slow := 0
	scenario(t, []string{"h1"}, nil, func(w *world) {
		w.until(3 * time.Minute)
		if diff := cmp.Diff([]time.Duration{0, 60 * s, 90 * s, 120 * s, 150 * s, 180 * s}, w.lookTimes("h1")); diff != "" {
			t.Error(diff)
		}
	}, func(cfg *converge.Config) {
		metrics := cfg.Metrics
		cfg.Metrics = func(sum reconcile.Summary) {
			metrics(sum)
			if slow++; slow == 1 {
				pass(45 * s)
			}
		}
	})
}

func TestReadyWaitsForTheFirstLooksOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1", "dead")
		w.hosts["h1"].answerAt = 2 * s
		w.hosts["dead"].hangs = true
		w.boot("h1", "fuse-x", "X")
		w.hosts["h1"].destroyTakes = time.Minute
		loop := w.run()
		early, cancel := context.WithTimeout(context.Background(), 3*s)
		defer cancel()
		if err := loop.WaitReady(early); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiting for 3 s: %v", err)
		}
		w.until(10*s - 1)
		if loop.Ready() == nil {
			t.Error("ready while a host has not been looked at")
		}
		w.until(10 * s)
		if err := loop.Ready(); err != nil {
			t.Errorf("not ready after one host deadline: %v", err)
		}
		if err := loop.WaitReady(context.Background()); err != nil {
			t.Error(err)
		}
		if err := loop.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestReadyAtOnceWhenAllAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1")
		loop := w.run()
		synctest.Wait()
		if err := loop.Ready(); err != nil {
			t.Error(err)
		}
		if err := loop.end(); err != nil {
			t.Error(err)
		}
	})
}

// A host that is dead or slow delays nobody's steps, neither by not answering
// nor by being slow to destroy.
func TestADeadHostDelaysNobody(t *testing.T) {
	scenario(t, []string{"dead", "good", "slow"}, func(w *world) {
		w.hosts["dead"].hangs = true
		w.hosts["slow"].destroyTakes = time.Hour
		w.boot("good", "fuse-x", "X")
		for i := range 300 {
			w.boot("slow", fmt.Sprintf("fuse-%d", i), fmt.Sprint("S", i))
		}
	}, func(w *world) {
		w.until(0)
		if w.has("good", "X") {
			t.Error("the orphan waits for another host's look")
		}
		w.until(45 * s)
		w.boot("good", "fuse-y", "Y")
		w.until(60 * s)
		if w.has("good", "Y") {
			t.Error("the orphan waits for another host's destroys")
		}
		if n := len(w.lookTimes("slow")); n != 3 {
			t.Errorf("the slow host was looked at %d times in a minute", n)
		}
		begun := 0
		for i := range 300 {
			begun += len(w.destroyTimes(fmt.Sprint("S", i)))
		}
		if begun != converge.DefaultStepsPerHost {
			t.Errorf("%d destroys run on one host", begun)
		}
		for i, sum := range w.summaries() {
			if sum.InFlight != 300 {
				t.Errorf("cycle %d: %d steps in flight, want 300", i, sum.InFlight)
			}
		}
	}, func(cfg *converge.Config) { cfg.Limits.PerCycle = -1 })
}

// More hosts than looks at a time, and half of them dead: those that answer are
// seen in every cycle, the dead ones get their turn all the same.
func TestFanOutIsBoundedAndFair(t *testing.T) {
	var hosts []string
	for i := range 40 {
		hosts = append(hosts, fmt.Sprintf("h%02d", i))
	}
	scenario(t, hosts, func(w *world) {
		for i, id := range hosts {
			w.hosts[id].hangs = i < 20
			w.hosts[id].answerAt = s / 2
		}
	}, func(w *world) {
		w.until(10*time.Minute - 1)
		if w.most > 4 {
			t.Errorf("%d looks at a time, 4 allowed", w.most)
		}
		for i, id := range hosts {
			times := w.lookTimes(id)
			if len(times) != 20 {
				t.Errorf("%s was looked at %d times in 20 cycles", id, len(times))
			}
			if late := times[len(times)-1] - (10*time.Minute - 30*s); i >= 20 && late > 3*s {
				t.Errorf("%s, which answers, waited %v for its turn", id, late)
			}
		}
		for i, sum := range w.summaries() {
			if i > 0 && !slices.Equal(hosts[:20], sum.HostsUnseen) {
				t.Errorf("cycle %d: %v were not seen", i, sum.HostsUnseen)
			}
		}
	}, func(cfg *converge.Config) { cfg.MaxLooks = 4 })
}

// The race that destroys healthy machines elsewhere: a machine is made while a
// slow listing is under way. It survives, whenever the host makes its list and
// whenever the create begins and ends.
func TestVMsMadeDuringASlowListingSurvive(t *testing.T) {
	for _, listAt := range []time.Duration{0, 2500 * time.Millisecond, 5 * s} {
		t.Run(listAt.String(), func(t *testing.T) {
			scenario(t, []string{"h1"}, func(w *world) {
				w.hosts["h1"].listAt, w.hosts["h1"].answerAt = listAt, 5*s
			}, func(w *world) {
				var all []string
				for i := range 36 { // over the looks of two cycles and between
					at := time.Duration(i) * s
					uid := fmt.Sprintf("U%02d", i)
					all = append(all, uid)
					go func() {
						w.until(at + 100*time.Millisecond)
						w.create("h1", "fuse-"+uid, uid, []time.Duration{0, s, 4 * s}[i%3])
					}()
				}
				w.until(3 * time.Minute)
				for _, uid := range all {
					if row := w.row(uid); row == nil || row.State != fleet.VMStateRunning || !w.has("h1", uid) {
						t.Errorf("%s: row %v, on its host %v", uid, row, w.has("h1", uid))
					}
					if times := w.destroyTimes(uid); times != nil {
						t.Errorf("%s was destroyed at %v", uid, times)
					}
				}
				for i, sum := range w.summaries() {
					if sum.MissingSuspected+sum.OrphansDestroyed+sum.OrphansFailed > 0 {
						t.Errorf("cycle %d: %+v", i, sum)
					}
				}
			})
		})
	}
}

// Ids are used verbatim: nothing is folded on its way to a host and back.
func TestTaskIDsOfAnySpelling(t *testing.T) {
	ids := []string{"fuse-Build.42_A", "fuse-ALLCAPS", "fuse-a.b.c", "fuse-x_y", "fuse-build.42_a"}
	scenario(t, []string{"h1"}, func(w *world) {
		for _, id := range ids {
			w.track(fleet.VM{ID: id, UID: "uid of " + id, TaskID: strings.TrimPrefix(id, "fuse-"), HostID: "h1", State: fleet.VMStateRunning})
			w.boot("h1", id, "uid of "+id)
		}
		w.boot("h1", "fuse-Left_Over.1", "X")
	}, func(w *world) {
		w.until(5 * time.Minute)
		for _, id := range ids {
			if w.row("uid of "+id) == nil || !w.has("h1", "uid of "+id) {
				t.Errorf("%s did not survive", id)
			}
		}
		if w.has("h1", "X") {
			t.Error("the orphan is still there")
		}
	})
}

func TestADeadHostKeepsItsVMs(t *testing.T) {
	for name, fail := range map[string]func(*host){
		"refuses": func(h *host) { h.down = true },
		"hangs":   func(h *host) { h.hangs = true },
		"partial": func(h *host) { h.partial = true; h.vms = map[string]fleet.ObservedVM{} },
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, []string{"h1", "h2"}, func(w *world) {
				w.running("h1", "A")
				w.running("h1", "B")
				w.running("h2", "C")
			}, func(w *world) {
				w.until(s)
				var before map[string]fleet.ObservedVM
				w.on("h1", func(h *host) { before = h.vms; fail(h) })
				w.until(20 * time.Minute)
				for _, uid := range []string{"A", "B", "C"} {
					if row := w.row(uid); row == nil || row.State != fleet.VMStateRunning {
						t.Fatalf("%s: %+v", uid, row)
					}
				}
				sum, _ := last(w)
				if sum.TrackedVMs != 3 || sum.ProviderVMs != 3 || !slices.Equal(sum.HostsUnseen, []string{"h1"}) {
					t.Errorf("while it is dead: %+v", sum)
				}
				// It returns with A and without B.
				delete(before, "B")
				w.on("h1", func(h *host) { *h = host{vms: before} })
				w.until(20*time.Minute + 35*s)
				if w.row("B") == nil {
					t.Error("B is gone after one look")
				}
				w.until(21*time.Minute + 5*s)
				life := w.life("B")
				if w.row("A") == nil || w.row("B") != nil || life == nil || life.Reason.Rule != fleet.RuleMissingFromProvider {
					t.Errorf("A %v, B %v, %+v", w.row("A"), w.row("B"), life)
				}
			})
		})
	}
}

func last(w *world) (reconcile.Summary, bool) {
	all := w.summaries()
	if len(all) == 0 {
		return reconcile.Summary{}, false
	}
	return all[len(all)-1], true
}

func TestMissingVMsAreEndedWithTheirReason(t *testing.T) {
	scenario(t, []string{"h1"}, func(w *world) {
		for _, uid := range []string{"A", "B", "C"} {
			w.running("h1", uid)
		}
	}, func(w *world) {
		w.until(s)
		w.on("h1", func(h *host) {
			delete(h.vms, "A")
			delete(h.vms, "B")
			h.exits = []fleet.ExitRecord{{UID: "B", VMID: "fuse-B", Cause: "vmm_exited", Detail: "signal 9", At: time.Now()}}
		})
		w.until(31 * s)
		if w.row("A") == nil || w.row("B") != nil {
			t.Error("after one look the recorded end alone counts")
		}
		w.until(61 * s)
		for uid, evidence := range map[string]string{
			"A": "host h1 does not list it: 2 complete looks in a row, from h1.2 to h1.3",
			"B": "host h1 recorded the end at 2000-01-01T00:00:01Z: vmm_exited, signal 9 (look h1.2)",
		} {
			life := w.life(uid)
			if life == nil || life.Reason.Actor != fleet.ActorReconcile || life.Reason.Rule != fleet.RuleMissingFromProvider ||
				!strings.HasPrefix(life.Reason.Evidence, evidence) {
				t.Errorf("%s ended as %+v", uid, life)
			}
			if task := w.task(uid); task.RunStatus != fleet.TaskRunFailed {
				t.Errorf("task of %s is %s", uid, task.RunStatus)
			}
		}
		if w.row("C") == nil || w.task("C").RunStatus != fleet.TaskRunRunning {
			t.Error("C is gone")
		}
		var missing, suspected int
		for _, sum := range w.summaries() {
			missing, suspected = missing+sum.VMsMissingProvider, suspected+sum.MissingSuspected
		}
		if missing != 2 || suspected != 1 {
			t.Errorf("counted %d missing, %d suspected", missing, suspected)
		}
	})
}

func TestOrphansAreTriedFiveTimes(t *testing.T) {
	scenario(t, []string{"h1"}, func(w *world) {
		w.boot("h1", "fuse-x", "X")
		w.boot("h1", "fuse-y", "Y")
		w.hosts["h1"].refusesDestroy = true
	}, func(w *world) {
		w.until(s)
		w.on("h1", func(h *host) { delete(h.vms, "Y") })
		w.until(10 * time.Minute)
		want := []time.Duration{0, 30 * s, 60 * s, 90 * s, 120 * s}
		if diff := cmp.Diff(want, w.destroyTimes("X")); diff != "" {
			t.Errorf("tries of X:\n%s", diff)
		}
		if diff := cmp.Diff([]string{"fuse-x X"}, w.events(fleet.EventVMOrphanDead)); diff != "" {
			t.Errorf("given up:\n%s", diff)
		}
		if err := w.store.View(func(tx *state.ReadTx) error {
			d, ok := tx.DeadLetters().Get(fleet.DeadLetterOrphanDestroy, "fuse-x")
			if !ok || d.RetryCount != 5 || !strings.Contains(d.Reason, "after 5 tries") {
				t.Errorf("dead letter %+v", d)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		var failed, dead int
		for _, sum := range w.summaries() {
			failed, dead = failed+sum.OrphansFailed, dead+sum.OrphansDeadLettered
		}
		if failed != 6 || dead != 1 { // Y's one try failed too
			t.Errorf("counted %d failed, %d dead", failed, dead)
		}
		// A new process has a new budget, and then succeeds.
		w.on("h1", func(h *host) { h.refusesDestroy = false })
		again := w.run()
		w.until(10*time.Minute + s)
		if w.has("h1", "X") || len(w.events(fleet.EventVMOrphanDestroy)) != 1 {
			t.Errorf("X is still there; events %v", w.events(fleet.EventVMOrphanDestroy))
		}
		if err := again.end(); err != nil {
			t.Error(err)
		}
	})
}

func TestUnfinishedDestroysAreRetried(t *testing.T) {
	scenario(t, []string{"h1"}, func(w *world) {
		w.track(fleet.VM{UID: "D", HostID: "h1", State: fleet.VMStateDestroying})
		w.boot("h1", "fuse-D", "D")
		w.track(fleet.VM{UID: "N", State: fleet.VMStateDestroying}) // never had a host
		w.track(fleet.VM{UID: "G", HostID: "h1", State: fleet.VMStateDestroying})
		w.hosts["h1"].refusesDestroy = true
	}, func(w *world) {
		w.until(s)
		if w.row("N") != nil {
			t.Error("the row without a host is left")
		}
		w.until(5 * time.Minute)
		want := []time.Duration{0, 30 * s, 90 * s, 210 * s}
		if diff := cmp.Diff(want, w.destroyTimes("D")); diff != "" {
			t.Errorf("tries of D:\n%s", diff)
		}
		w.on("h1", func(h *host) { delete(h.vms, "D"); h.refusesDestroy = false })
		w.until(5*time.Minute + 31*s)
		life := w.life("D")
		if w.row("D") != nil || life == nil || life.Reason.Rule != fleet.RuleManualDestroy {
			t.Errorf("row %v, life %+v", w.row("D"), life)
		}
		if n := len(w.events(fleet.EventVMDestroyRetried)); n < 4 {
			t.Errorf("%d retries told", n)
		}
	})
}

// A step is judged once more when its turn comes: B was written meanwhile, so
// what the looks said of it counts no longer.
func TestStepsAreCheckedAgain(t *testing.T) {
	scenario(t, []string{"h1"}, func(w *world) {
		w.track(fleet.VM{UID: "A", HostID: "h1", State: fleet.VMStateRunning})
		w.track(fleet.VM{UID: "B", HostID: "h1", State: fleet.VMStateRunning})
		w.hosts["h1"].destroyTakes = 4 * s
	}, func(w *world) {
		w.until(31 * s) // A's destroy is under way, B's waits
		w.boot("h1", "fuse-B", "B")
		w.update(func(tx *state.Tx) error {
			vm := *w.row("B")
			vm.LastError = "restored"
			return tx.PutVM(vm)
		})
		w.until(5 * time.Minute)
		if w.row("A") != nil || w.row("B") == nil || w.destroyTimes("B") != nil {
			t.Errorf("A %v, B %v destroyed at %v", w.row("A"), w.row("B"), w.destroyTimes("B"))
		}
		if sum := w.summaries()[1]; sum.Dropped != 1 || sum.VMsMissingProvider != 1 {
			t.Errorf("%+v", sum)
		}
	}, func(cfg *converge.Config) { cfg.StepsPerHost = 1 })
}

func TestRunEndsWithItsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "h1", "h2")
		w.boot("h1", "fuse-x", "X")
		w.hosts["h1"].destroyTakes = time.Hour
		w.hosts["h2"].hangs = true
		loop := w.run()
		w.until(5 * s)
		if err := loop.end(); err != nil {
			t.Error(err)
		}
		if took := time.Since(w.start); took != 5*s {
			t.Errorf("it took until %v", took)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	_, err := converge.New(converge.Config{Interval: -1, HostDeadline: time.Hour, MaxLooks: -1, EventRetention: -1})
	for _, want := range []string{
		"it needs a store", "it needs a looker", "it needs a destroyer", "it needs an orphan killer",
		"the interval is -1ns; it has to be more than 0",
		"the host deadline is 1h0m0s; it can be at most half the interval of -1ns",
		"bounds have to be more than 0", "the retention of events is -1ns", "it needs the events to forget old ones",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}
