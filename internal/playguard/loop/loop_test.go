package loop_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

const pg = model.PlaygroundID("p1")

// settle lets a job end.
const settle = 30 * time.Second

func TestALife(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l := w.lead(1)
		defer l.stop()
		v1, v2 := version("1"), version("2")
		project := w.ask(l, "m0", pg, v1)
		pass(settle)
		p := w.want(pg, model.StateRunning)
		if p.Applied != v1.Digest || p.Job != "" || p.Step != "" || !p.Op.IsZero() {
			t.Errorf("%+v", p)
		}
		w.ask(l, "m0", pg, v2)
		pass(settle)
		if p = w.want(pg, model.StateRunning); p.LastRollout == nil || p.LastRollout.Result != records.RolloutDone || w.sims["m0"].running(project)["web"] != "web-2" {
			t.Errorf("%+v, runs %v", p.LastRollout, w.sims["m0"].running(project))
		}
		w.act(l, pg, model.ActionStop)
		pass(settle)
		w.want(pg, model.StateStopped)
		w.act(l, pg, model.ActionStart)
		pass(settle)
		w.want(pg, model.StateRunning)
		w.act(l, pg, model.ActionHardRestart)
		pass(settle)
		w.want(pg, model.StateRunning)
		w.act(l, pg, model.ActionDestroy)
		pass(90 * time.Second)
		if _, ok := w.get(pg); ok {
			t.Error("its record is still there")
		}
		if got, want := w.sims["m0"].gone(), []string{"p1_data"}; !slices.Equal(got, want) {
			t.Errorf("volumes removed: %v, want %v", got, want)
		}
		left := 0
		_ = w.store.View(func(tx *state.ReadTx) error { left = records.Entries.Len(tx); return nil })
		if left != 0 {
			t.Errorf("%d documents are left of it", left)
		}
		want := []string{"files 1", "up 1", "files 1", "up 1", "stop 1", "files 1", "up 1", "files 1", "down 1", "up 1", "destroy 1"}
		if got := w.sims["m0"].ran(); !slices.Equal(got, want) {
			t.Errorf("operations %v\nwant       %v", got, want)
		}
		for typ, n := range map[string]int{
			fleet.EventPlaygroundOperationStarted: len(want), fleet.EventPlaygroundOperationEnded: len(want), fleet.EventPlaygroundRolledOut: 1, fleet.EventPlaygroundDestroyed: 1,
		} {
			if got := w.events(typ); got != n {
				t.Errorf("%d events %s, want %d", got, typ, n)
			}
		}
	})
}

// A look between the two that end a destroy does not put the second off until
// the marquee's next turn.
func TestALookBetweenTheTwoOfADestroy(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l := w.lead(1)
		defer l.stop()
		w.ask(l, "m0", pg, version("1"))
		pass(settle)
		w.want(pg, model.StateRunning)
		w.act(l, pg, model.ActionDestroy)
		for range 60 {
			if p, _ := w.get(pg); p.Strikes.Count > 0 {
				break
			}
			pass(time.Second)
		}
		if p, ok := w.get(pg); !ok || p.Strikes.Count != 1 {
			t.Fatalf("no look has shown the end: %+v", p)
		}
		pass(15 * time.Second)
		if _, err := l.Check(context.Background(), "m0"); err != nil {
			t.Fatal(err)
		}
		if _, ok := w.get(pg); !ok {
			t.Fatal("two looks within the gap counted as two")
		}
		pass(25 * time.Second)
		if _, ok := w.get(pg); ok {
			t.Error("its record is still there")
		}
	})
}

// A definition that does not come up gives way to the one before.
func TestABadRolloutStaysOnTheOld(t *testing.T) {
	for name, spoil := range map[string]func(s *sim, v records.Version){
		"no image":    func(s *sim, v records.Version) { s.noImage[v.Digest] = true },
		"bad program": func(s *sim, _ records.Version) { s.bad["web-2"] = true },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, func(w *world) {
				l := w.lead(1)
				defer l.stop()
				v1, v2 := version("1"), version("2")
				project := w.ask(l, "m0", pg, v1)
				pass(settle)
				spoil(w.sims["m0"], v2)
				w.ask(l, "m0", pg, v2)
				pass(2 * time.Minute)
				p := w.want(pg, model.StateRunning)
				if p.Desired != v1.Digest || p.Applied != v1.Digest || p.LastRollout == nil || p.LastRollout.Result != records.RolloutFailed || p.LastRollout.Failure.Text == "" {
					t.Errorf("%+v, rollout %+v", p, p.LastRollout)
				}
				if got := w.sims["m0"].running(project); got["web"] != "web-1" {
					t.Errorf("runs %v", got)
				}
				before := len(w.sims["m0"].ran())
				pass(time.Hour)
				if got := w.sims["m0"].ran()[before:]; len(got) != 0 {
					t.Errorf("it is not at rest: %v", got)
				}
			})
		})
	}
}

// A first definition that does not come up is an error, with its cause.
func TestABadCreateIsAnError(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l := w.lead(1)
		defer l.stop()
		w.sims["m0"].bad["web-1"] = true
		w.ask(l, "m0", pg, version("1"))
		pass(2 * time.Minute)
		if p := w.want(pg, model.StateError); p.Failure.Category != model.CategoryServiceExit || p.Failure.Temporary() {
			t.Errorf("%+v", p.Failure)
		}
	})
}

// Idle passes cost one look and no commit, each at its own time in the period.
func TestIdlePasses(t *testing.T) {
	bubble(t, 20, func(w *world) {
		l := w.lead(1)
		defer l.stop()
		pass(time.Minute) // the first look of each, and its claim
		head, _ := w.store.Head()
		for _, s := range w.sims {
			s.set(func(s *sim) { s.looks = nil })
		}
		pass(10 * time.Minute)
		starts := map[time.Duration]bool{}
		for id, s := range w.sims {
			if len(s.lookTimes()) != 10 {
				t.Errorf("%s: %d looks in 10 min", id, len(s.lookTimes()))
				continue
			}
			for i := 1; i < 10; i++ {
				if gap := s.lookTimes()[i].Sub(s.lookTimes()[i-1]); gap != time.Minute {
					t.Errorf("%s: %s between looks", id, gap)
				}
			}
			starts[s.lookTimes()[0].Sub(s.lookTimes()[0].Truncate(time.Minute)).Truncate(time.Second)] = true
		}
		if len(starts) < 10 {
			t.Errorf("20 marquees are looked at in only %d different seconds", len(starts))
		}
		if now, _ := w.store.Head(); now != head {
			t.Errorf("%d commits by idle passes", now-head)
		}
	})
}

// A dead and a hanging marquee delay nobody, also with few passes at once.
func TestOthersAreNotDelayed(t *testing.T) {
	bubble(t, 30, func(w *world) {
		w.sims["m0"].dead, w.sims["m1"].hangs = true, true
		l := w.lead(1)
		defer l.stop()
		pass(10 * time.Minute)
		for id, s := range w.sims {
			if id == "m0" || id == "m1" {
				continue
			}
			for i := 1; i < len(s.lookTimes()); i++ {
				if gap := s.lookTimes()[i].Sub(s.lookTimes()[i-1]); gap > time.Minute+time.Second {
					t.Errorf("%s: %s between looks", id, gap)
				}
			}
			if len(s.lookTimes()) < 9 {
				t.Errorf("%s: only %d looks", id, len(s.lookTimes()))
			}
		}
	})
}

func TestQuarantineAndReturn(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l := w.lead(1)
		defer l.stop()
		w.ask(l, "m0", pg, version("1"))
		pass(2 * time.Minute)
		s := w.sims["m0"]
		s.set(func(s *sim) { s.dead, s.looks = true, nil })
		pass(5*time.Minute + time.Second)
		if m := w.row("m0"); m.Reach != model.ReachQuarantined || m.Trouble != "dial" {
			t.Errorf("after five misses: %+v", m)
		}
		if !w.deadLetter(fleet.DeadLetterMarqueeQuarantined, "m0") || w.events(fleet.EventMarqueeQuarantined) != 1 {
			t.Error("nobody was told")
		}
		pass(70 * time.Minute)
		var gaps []time.Duration
		for i := 5; i < len(s.lookTimes()); i++ {
			gaps = append(gaps, s.lookTimes()[i].Sub(s.lookTimes()[i-1]).Round(time.Second))
		}
		if want := []time.Duration{5 * time.Minute, 10 * time.Minute, 20 * time.Minute, 30 * time.Minute}; !slices.Equal(gaps, want) {
			t.Errorf("probes after %v, want %v", gaps, want)
		}
		w.want(pg, model.StateRunning)
		s.set(func(s *sim) { s.dead = false })
		pass(30 * time.Minute)
		if m := w.row("m0"); m.Reach != model.ReachOK || m.Trouble != "" || m.Streak.Count != 0 {
			t.Errorf("after a clean look: %+v", m)
		}
		n := len(s.lookTimes())
		pass(5 * time.Minute)
		if got := len(s.lookTimes()) - n; got < 5 {
			t.Errorf("%d looks in the 5 min after the return", got)
		}
	})
}

// What a look shows once is not acted on; twice, it is. Budgets outlive the
// process.
func TestStrikesAndBudgets(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l := w.lead(1)
		project := w.ask(l, "m0", pg, version("1"))
		pass(10 * time.Minute)
		s := w.sims["m0"]
		ups := func() (n int) {
			for _, op := range s.ran() {
				if strings.HasPrefix(op, "up ") {
					n++
				}
			}
			return n
		}
		for i := range 3 {
			s.hurt(project, func(p *project2) { s.end(p, 1) })
			before := ups()
			pass(59 * time.Second)
			if ups() != before {
				t.Errorf("crash %d: acted after one look", i)
			}
			pass(3 * time.Minute)
			if ups() != before+1 {
				t.Errorf("crash %d: %d ups after two looks, want one", i, ups()-before)
			}
			pass(10 * time.Minute) // the repair's lease
			l.stop()
			l = w.lead(int64(i + 2))
		}
		s.hurt(project, func(p *project2) { s.end(p, 1) })
		before := ups()
		pass(5 * time.Minute)
		if p := w.want(pg, model.StateError); p.Failure.Category != model.CategoryRepairsSpent || ups() != before {
			t.Errorf("a fourth crash within the hour: %+v, %d more ups", p.Failure, ups()-before)
		}
		if !w.deadLetter(fleet.DeadLetterPlaygroundRepairs, string(pg)) {
			t.Error("nobody was told")
		}
		l.stop()
	})
}

type project2 = project

// A host that went down and came back is repaired, not taken for stopped.
func TestHostEvent(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l := w.lead(1)
		defer l.stop()
		project := w.ask(l, "m0", pg, version("1"))
		pass(10 * time.Minute)
		s := w.sims["m0"]
		s.hurt(project, func(p *project2) { s.end(p, 0); s.boot, s.daemon = "boot2", time.Now().Add(time.Second) })
		pass(4 * time.Minute)
		w.want(pg, model.StateRunning)
		if len(s.running(project)) != 2 {
			t.Errorf("runs %v", s.running(project))
		}
		s.hurt(project, func(p *project2) { s.end(p, 0) }) // somebody stops it there
		pass(4 * time.Minute)
		w.want(pg, model.StateStopped)
	})
}

// A leader that was stopped in the middle changes nothing after another took
// over, and what it left is brought to its end.
func TestTakeover(t *testing.T) {
	for at := time.Second; at < 12*time.Second; at += time.Second {
		t.Run(at.String(), func(t *testing.T) {
			bubble(t, 1, func(w *world) {
				s := w.sims["m0"]
				old := w.lead(1)
				defer old.stop()
				project := w.ask(old, "m0", pg, version("1"))
				pass(at)
				old.holds.Store(false) // its lease is over; it has not noticed otherwise
				next := w.lead(2)
				defer next.stop()
				pass(5 * time.Minute)
				w.want(pg, model.StateRunning)
				if len(s.running(project)) != 2 {
					t.Errorf("runs %v", s.running(project))
				}
				newer := false
				for _, op := range s.ran() {
					if strings.HasSuffix(op, " 2") {
						newer = true
					} else if newer {
						t.Errorf("an operation of the first after one of the second: %v", s.ran())
					}
				}
			})
		})
	}
}

// The host itself refuses a leader that believes to hold its lease.
func TestTheHostRefusesAnOlderEpoch(t *testing.T) {
	bubble(t, 1, func(w *world) {
		s := w.sims["m0"]
		l := w.lead(1)
		defer l.stop()
		w.ask(l, "m0", pg, version("1"))
		pass(2 * time.Minute)
		s.set(func(s *sim) { s.epoch = 9 })
		before := len(s.ran())
		w.act(l, pg, model.ActionRollout)
		pass(10 * time.Minute)
		if got := s.ran()[before:]; len(got) != 0 {
			t.Errorf("began %v", got)
		}
		if n := w.events(fleet.EventMarqueeAlarmed); n != 1 {
			t.Errorf("%d alarms, want one", n)
		}
		d := l.Decisions(pg)
		if len(d) == 0 || d[0].Step.Act != (decide.Refuse{Guard: decide.GuardSuperseded}) {
			t.Errorf("decisions %+v", d)
		}
	})
}

// An answer that does not come says nothing: the operation is found and not
// begun again.
func TestALostAnswerToAStart(t *testing.T) {
	bubble(t, 1, func(w *world) {
		s := w.sims["m0"]
		s.deaf = true
		l := w.lead(1)
		defer l.stop()
		w.ask(l, "m0", pg, version("1"))
		pass(time.Minute)
		w.want(pg, model.StateRunning)
		if want := []string{"files 1", "up 1"}; !slices.Equal(s.ran(), want) {
			t.Errorf("operations %v, want %v", s.ran(), want)
		}
	})
}

// Who asks for something else while a job works is obeyed at once: an up that
// takes its time is told to end, and what it began goes.
func TestAStopDuringAJob(t *testing.T) {
	for _, a := range []model.Action{model.ActionStop, model.ActionDestroy} {
		t.Run(string(a), func(t *testing.T) {
			bubble(t, 1, func(w *world) {
				l := w.lead(1)
				defer l.stop()
				s := w.sims["m0"]
				begun := s.begun
				s.begun = func(r runner.Request) {
					begun(r)
					if s.opTime = 3 * time.Second; r.Verb.Kind() == model.OpUp {
						s.opTime = w.policy.UpTimeout
					}
				}
				project := w.ask(l, "m0", pg, version("1"))
				pass(10 * time.Second) // up is under way
				if got := s.ran(); !slices.Equal(got, []string{"files 1", "up 1"}) {
					t.Fatalf("%v", got)
				}
				w.act(l, pg, a)
				pass(20 * time.Second)
				if a == model.ActionStop {
					w.want(pg, model.StateStopped)
				} else if got := s.ran(); got[len(got)-1] != "destroy 1" {
					t.Errorf("%v", got)
				}
				if got := s.running(project); len(got) != 0 {
					t.Errorf("runs %v", got)
				}
				pass(time.Minute)
				if _, ok := w.get(pg); ok != (a == model.ActionStop) {
					t.Errorf("its record is there: %v", ok)
				}
			})
		})
	}
}

// An up that another process began is told to end as well.
func TestAStopAfterATakeover(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l, s := w.lead(1), w.sims["m0"]
		begun := s.begun
		s.begun = func(r runner.Request) {
			begun(r)
			if s.opTime = 3 * time.Second; r.Verb.Kind() == model.OpUp {
				s.opTime = time.Hour
			}
		}
		project := w.ask(l, "m0", pg, version("1"))
		pass(10 * time.Second) // up is under way
		l.stop()
		l = w.lead(2)
		defer l.stop()
		w.act(l, pg, model.ActionStop)
		pass(4 * time.Minute)
		w.want(pg, model.StateStopped)
		if got := s.running(project); len(got) != 0 || len(s.ran()) != 3 {
			t.Errorf("runs %v after %v", got, s.ran())
		}
	})
}

// A disabled marquee is not reached at all, and a check says so.
func TestDisabled(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l := w.lead(1)
		defer l.stop()
		pass(time.Minute)
		w.update(func(tx *state.Tx) error {
			m, _ := records.Marquees.Get(tx, "m0")
			row := *m
			row.Admin = model.AdminDisabled
			return records.PutMarquee(tx, row)
		})
		s := w.sims["m0"]
		s.set(func(s *sim) { s.looks = nil })
		w.ask(l, "m0", pg, version("1"))
		pass(5 * time.Minute)
		if len(s.lookTimes())+len(s.ran()) != 0 {
			t.Errorf("%d looks, operations %v", len(s.lookTimes()), s.ran())
		}
		sight, err := l.Check(context.Background(), "m0")
		if err != nil || !sight.Skipped {
			t.Errorf("%+v %v", sight, err)
		}
	})
}

// disable takes a marquee out of use, as a person does, or takes it back.
func (w *world) disable(id model.MarqueeID, disabled bool) {
	w.update(func(tx *state.Tx) error {
		m, _ := records.Marquees.Get(tx, string(id))
		row := *m
		row.Admin = model.AdminActive
		if disabled {
			row.Admin = model.AdminDisabled
		}
		return records.PutMarquee(tx, row)
	})
}

// A marquee that a person takes out of use while work is under way there is not
// reached from then on, whatever the work was at, and the work comes to its end
// when the marquee is back.
func TestDisabledDuringAJob(t *testing.T) {
	for name, c := range map[string]struct {
		at   time.Duration
		then []string // that began by then
		late []string // that begins later
	}{
		"files is at work": {2 * time.Second, []string{"files 1"}, []string{"files 1", "up 1"}},
		"up is at work":    {5 * time.Second, []string{"files 1", "up 1"}, nil},
		"it is looked at":  {9 * time.Second, []string{"files 1", "up 1"}, []string{"files 1", "up 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, func(w *world) {
				l := w.lead(1)
				defer l.stop()
				s := w.sims["m0"]
				s.bad["web-1"] = name == "it is looked at"
				w.ask(l, "m0", pg, version("1"))
				pass(c.at)
				if got := s.ran(); !slices.Equal(got, c.then) {
					t.Fatalf("%v, want %v", got, c.then)
				}
				w.disable("m0", true)
				pass(s.look + w.policy.HealthInterval) // what was asked already is answered
				s.set(func(s *sim) { s.reached = 0 })
				pass(10 * time.Minute)
				if got := s.ran(); !slices.Equal(got, c.then) || s.reached != 0 {
					t.Errorf("reached %d times, operations %v", s.reached, got[len(c.then):])
				}
				s.set(func(s *sim) { clear(s.bad) })
				w.disable("m0", false)
				pass(10 * time.Minute)
				w.want(pg, model.StateRunning)
				if got := s.ran()[len(c.then):]; !slices.Equal(got, c.late) {
					t.Errorf("after its return %v, want %v", got, c.late)
				}
			})
		})
	}
}

// A marquee that another works on is asked again for a while, and people are told
// of one operation: that it was started, and how it ended.
func TestABusyMarquee(t *testing.T) {
	for name, ends := range map[string]time.Duration{"for a while": 2 * time.Minute, "for long": time.Hour} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, func(w *world) {
				l := w.lead(1)
				defer l.stop()
				s := w.sims["m0"]
				pass(time.Minute)
				other, err := model.NewProject("other", "p2")
				if err != nil {
					t.Fatal(err)
				}
				s.set(func(s *sim) {
					id := strings.ToLower(uid.New())
					s.ops[id] = &simOp{req: runner.Request{Op: id, Epoch: 1, Project: other, Playground: "p2", Verb: decide.VerbOf(decide.Stop{})}, ends: time.Now().Add(ends)}
					s.order = append(s.order, id)
				})
				w.ask(l, "m0", pg, version("1"))
				pass(7 * time.Minute)
				started, ended := w.events(fleet.EventPlaygroundOperationStarted), w.events(fleet.EventPlaygroundOperationEnded)
				if want := len(s.ran()); ends < time.Hour {
					w.want(pg, model.StateRunning)
					if started != want || ended != want {
						t.Errorf("%d operations, %d told to start and %d to end", want, started, ended)
					}
				} else if started > 2 || ended < 1 || started-ended > 1 || want != 0 { // given up, and perhaps begun anew
					t.Errorf("%d told to start and %d to end, began %v", started, ended, s.ran())
				}
			})
		})
	}
}

// A server that ends while a marquee is busy leaves nobody waiting for an end.
func TestAServerThatEndsWhileAMarqueeIsBusy(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l, s := w.lead(1), w.sims["m0"]
		pass(time.Minute)
		other, err := model.NewProject("other", "p2")
		if err != nil {
			t.Fatal(err)
		}
		s.set(func(s *sim) {
			s.ops["other"] = &simOp{req: runner.Request{Op: "other", Epoch: 1, Project: other, Playground: "p2", Verb: decide.VerbOf(decide.Stop{})}, ends: time.Now().Add(time.Hour)}
			s.order = append(s.order, "other")
		})
		w.ask(l, "m0", pg, version("1"))
		pass(time.Minute)
		l.stop()
		if started, ended := w.events(fleet.EventPlaygroundOperationStarted), w.events(fleet.EventPlaygroundOperationEnded); started != 1 || ended != 1 {
			t.Errorf("%d told to start and %d to end", started, ended)
		}
	})
}

// Passes are counted, and refusals with them.
func TestSummaries(t *testing.T) {
	bubble(t, 1, func(w *world) {
		w.sums = make(chan loop.Summary, 100)
		l := w.lead(1)
		defer l.stop()
		w.ask(l, "m0", pg, version("1"))
		pass(10 * time.Minute)
		w.sims["m0"].set(func(s *sim) { s.dead = true })
		pass(time.Minute)
		close(w.sums)
		seen, unseen, refused := 0, 0, 0
		for s := range w.sums {
			switch {
			case s.Verdict == "seen" && s.Playgrounds == 1:
				seen++
			case s.Verdict == "unseen":
				unseen++
				refused += s.Refusals[decide.GuardUnseen]
			}
		}
		if seen < 9 || unseen != 1 || refused != 1 {
			t.Errorf("%d seen, %d unseen, %d refusals", seen, unseen, refused)
		}
		w.sums = nil
	})
}

// Orphans are told of once, and stay.
func TestOrphansAreReported(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l := w.lead(1)
		defer l.stop()
		project := w.ask(l, "m0", pg, version("1"))
		pass(2 * time.Minute)
		w.update(func(tx *state.Tx) error { return records.DeletePlayground(tx, pg) })
		pass(10 * time.Minute)
		if n := w.events(fleet.EventMarqueeOrphanFound); n != 1 {
			t.Errorf("%d events, want one", n)
		}
		if got := w.sims["m0"].running(project); len(got) != 2 {
			t.Errorf("runs %v", got)
		}
		sight, ok := l.Sight("m0")
		if !ok || len(sight.Orphans) != 1 || !strings.Contains(fmt.Sprint(sight.Orphans[0].Act), project.String()) {
			t.Errorf("%+v", sight.Orphans)
		}
	})
}

// What is asked while a repair is at work begins right after it.
func TestARequestDuringARepair(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l := w.lead(1)
		defer l.stop()
		project := w.ask(l, "m0", pg, version("1"))
		pass(10 * time.Minute)
		s := w.sims["m0"]
		s.set(func(s *sim) { s.opTime = 30 * time.Second })
		s.hurt(project, func(p *project2) { s.end(p, 1) })
		for !l.Working("m0", pg) {
			pass(time.Second)
		}
		w.ask(l, "m0", pg, version("2"))
		pass(2 * time.Minute)
		p := w.want(pg, model.StateRunning)
		if p.Applied != version("2").Digest || s.running(project)["web"] != "web-2" {
			t.Errorf("%+v runs %v", p, s.running(project))
		}
	})
}

// The host's list of operations is kept short, once a day.
func TestOldOperationsAreForgotten(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l := w.lead(1)
		defer l.stop()
		pass(49 * time.Hour)
		if n := w.sims["m0"].forgot(); n != 3 {
			t.Errorf("%d times in 49 h, want 3", n)
		}
	})
}

// A destroy that fails again and again is told of, and goes on.
func TestADestroyThatFails(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l := w.lead(1)
		defer l.stop()
		w.ask(l, "m0", pg, version("1"))
		pass(time.Minute)
		s := w.sims["m0"]
		s.set(func(s *sim) { s.stuck = true })
		w.act(l, pg, model.ActionDestroy)
		pass(10 * time.Minute)
		w.want(pg, model.StateDestroying)
		if !w.deadLetter(fleet.DeadLetterPlaygroundDestruction, string(pg)) {
			t.Error("nobody was told")
		}
		if n := len(s.ran()); n > 20 {
			t.Errorf("%d operations in 10 min: it is tried without a pause", n)
		}
		s.set(func(s *sim) { s.stuck = false })
		pass(5 * time.Minute)
		if _, ok := w.get(pg); ok {
			t.Error("its record is still there")
		}
	})
}

// A marquee that is removed is not looked at any more; one that is added is, at
// once.
func TestMarqueesComeAndGo(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l := w.lead(1)
		defer l.stop()
		pass(2 * time.Minute)
		w.marquee("new")
		l.Kick("new")
		pass(3 * time.Second)
		if n := len(w.sims["new"].lookTimes()); n != 1 {
			t.Errorf("%d looks at a new marquee within 3 s, want one", n)
		}
		w.update(func(tx *state.Tx) error { return records.Marquees.Delete(tx, "m0") })
		l.Kick("m0")
		pass(time.Second)
		n := len(w.sims["m0"].lookTimes())
		pass(5 * time.Minute)
		if got := len(w.sims["m0"].lookTimes()); got != n {
			t.Errorf("%d looks at one that was removed", got-n)
		}
		if _, err := l.Check(context.Background(), "m0"); fleet.CodeOf(err) != fleet.CodeUnavailable {
			t.Errorf("a check of it: %v", err)
		}
		if _, ok := l.Sight("m0"); ok || !l.Due("m0").IsZero() {
			t.Error("something is remembered of it")
		}
	})
}

// A leader that ends leaves no goroutine, whatever is under way (the bubble
// would not end).
func TestStopInTheMiddle(t *testing.T) {
	for at := range 12 {
		bubble(t, 1, func(w *world) {
			l := w.lead(1)
			w.ask(l, "m0", pg, version("1"))
			pass(time.Duration(at) * time.Second)
			l.stop()
			before := len(w.sims["m0"].ran())
			pass(10 * time.Minute)
			if got := len(w.sims["m0"].ran()); got != before {
				t.Errorf("%d operations after the end", got-before)
			}
		})
	}
}
