package decide_test

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// stands are the states that a record can be in, with each intent that goes
// with them.
var stands = []struct {
	state  model.State
	intent model.Intent
}{
	{model.StatePending, model.IntentUp}, {model.StatePending, model.IntentJob},
	{model.StateInProgress, model.IntentUp}, {model.StateInProgress, model.IntentJob},
	{model.StateRunning, model.IntentUp}, {model.StateRunning, model.IntentStopped}, {model.StateRunning, model.IntentJob},
	{model.StateError, model.IntentUp}, {model.StateError, model.IntentJob},
	{model.StateHasChanges, model.IntentUp},
	{model.StateStopping, model.IntentStopped}, {model.StateStopped, model.IntentStopped}, {model.StateStopped, model.IntentUp},
	{model.StateCompleted, model.IntentJob}, {model.StateDestroying, model.IntentGone},
}

// sights are what a look may show.
var sights = []struct {
	name string
	set  func(h *modelHost, s *stack)
}{
	{"unseen", func(h *modelHost, _ *stack) { h.ending = observe.EndedAuth }},
	{"partial", func(h *modelHost, _ *stack) { h.cut = 700 }},
	{"another data root", func(h *modelHost, s *stack) { h.identity.DataRoot = "/x"; *s = stack{id: s.id} }},
	{"directory unread", func(_ *modelHost, s *stack) { s.dirUnread = true }},
	{"healthy", func(*modelHost, *stack) {}},
	{"healthy, outdated", func(_ *modelHost, s *stack) { s.containers[0].digest = "d0" }},
	{"healthy, no compose file", func(_ *modelHost, s *stack) { s.compose = "" }},
	{"starting", func(_ *modelHost, s *stack) { s.containers[0].health = "starting" }},
	{"unhealthy", func(_ *modelHost, s *stack) { s.containers[0].health = "unhealthy" }},
	{"one missing", func(_ *modelHost, s *stack) { s.containers = s.containers[1:] }},
	{"leftover", func(_ *modelHost, s *stack) { s.containers[0].name = "0123456789ab_" + s.containers[0].name }},
	{"at rest", func(_ *modelHost, s *stack) { s.end(0, noon.Add(-time.Minute)) }},
	{"at rest by a reboot", func(h *modelHost, s *stack) {
		s.end(0, noon.Add(-time.Minute))
		h.boot, h.booted, h.daemon = "boot2", noon.Add(-30*time.Second), noon.Add(-20*time.Second)
	}},
	{"crashed", func(_ *modelHost, s *stack) { s.end(1, noon.Add(-time.Minute)) }},
	{"containers gone", func(_ *modelHost, s *stack) { s.containers = nil }},
	{"all gone", func(_ *modelHost, s *stack) { *s = stack{id: s.id} }},
	{"foreign", func(_ *modelHost, s *stack) { s.marker = "inst2" }},
	{"operation at work", func(_ *modelHost, s *stack) {
		s.ops = []string{"opx " + string(s.id) + "--" + string(s.id) + " up 7 running"}
	}},
}

var gits = map[string]map[string]string{"clean": nil, "dirty": {"web": gitDirty}, "unread": {"web": "unread"}}

// TestExhaustiveOne puts one playground through every stand, sight, state of
// its checkouts and knowledge of its job, after every action of a person, with
// two passes under the eyes of the oracle.
func TestExhaustiveOne(t *testing.T) {
	actions := append([]model.Action{""}, model.Actions()...)
	failures := map[model.State][]model.Failure{model.StateError: {recoverable, final, spent, {Class: model.ClassRecoverable, Category: model.CategoryConflict}, {Class: model.ClassTransient, Category: model.CategoryNetwork}}}
	cases, worked, wrote := 0, 0, 0
	for _, stand := range stands {
		fs := failures[stand.state]
		if fs == nil {
			fs = []model.Failure{{}}
		}
		for _, sight := range sights {
			for git, checkouts := range gits {
				for job := range decide.JobNone + 1 {
					for _, f := range fs {
						for _, a := range actions {
							if a != "" && !stand.state.Allows(a) {
								continue // the same as no action
							}
							w := newWorld(1, func(format string, args ...any) {
								t.Helper()
								t.Logf("%s, intent %s, %s, %s, job %d, %s, %s", stand.state, stand.intent, sight.name, git, job, f.Category, a)
								t.Fatalf(format, args...)
							})
							p := w.rows["p0"]
							st := w.host.stack(p.Project)
							sight.set(w.host, st)
							st.git = checkouts
							p.State, p.Intent, p.Failure = stand.state, stand.intent, f
							w.rows["p0"], w.jobs["p0"] = p, job
							w.host.same = sight.name + "/" + git
							w.ask("p0", a)
							for _, after := range []time.Duration{0, 30 * time.Second} {
								for _, s := range w.pass(after) {
									if s.Works() {
										worked++
									}
									if s.Writes() {
										wrote++
									}
								}
							}
							cases++
						}
					}
				}
			}
		}
	}
	if cases < 10_000 || worked < 1000 || wrote < 2000 {
		t.Errorf("only %d cases, %d works, %d writes", cases, worked, wrote)
	}
}

// TestExhaustiveTwo puts two playgrounds through every pair of stands and
// sights with a budget for one: neither what one is nor the order changes what
// is true of the other.
func TestExhaustiveTwo(t *testing.T) {
	starved := 0
	for _, a := range stands {
		for _, b := range stands {
			for _, sa := range sights[4:] {
				for _, sb := range sights[4:] {
					if a.intent == model.IntentJob || b.intent == model.IntentJob || sa.name == "at rest by a reboot" || sb.name == "at rest by a reboot" {
						continue // the reboot is one of the host, not of a stack
					}
					w := newWorld(2, func(format string, args ...any) {
						t.Helper()
						t.Logf("%s %s, %s %s", a.state, sa.name, b.state, sb.name)
						t.Fatalf(format, args...)
					})
					w.policy.RolloutsPerPass = 1
					p, q := w.rows["p0"], w.rows["p1"]
					p.State, p.Intent, q.State, q.Intent = a.state, a.intent, b.state, b.intent
					sa.set(w.host, w.host.stack(p.Project))
					sb.set(w.host, w.host.stack(q.Project))
					w.rows["p0"], w.rows["p1"] = p, q
					w.host.same = sa.name + "/" + sb.name + "/two"
					for _, after := range []time.Duration{0, 30 * time.Second} {
						for _, s := range w.pass(after) {
							if s.Act == (decide.Refuse{Guard: decide.GuardBudget}) {
								starved++
							}
						}
					}
				}
			}
		}
	}
	if starved == 0 {
		t.Error("the budget never ran out")
	}
}

// TestVolumesAreDestroysAlone is T27: walking every operation there is, only
// destroy and reclaim have a field at all, and no other verb carries a volume.
func TestVolumesAreDestroysAlone(t *testing.T) {
	kinds := map[model.OpKind]bool{}
	for _, op := range []decide.Op{decide.Up{}, decide.Stop{}, decide.Down{}, decide.Files{}, decide.Branch{}, decide.Pull{}, decide.Auth{}, decide.Mark{}, decide.Destroy{Volumes: []string{"v"}}, decide.Reclaim{Volumes: []string{"v"}}, decide.Sweep{}, decide.Restore{}, decide.Purge{}} {
		v := decide.VerbOf(op)
		kinds[v.Kind()] = true
		destroy := v.Kind() == model.OpDestroy || v.Kind() == model.OpReclaim
		if fields := reflect.TypeOf(op).NumField(); (fields > 0) != destroy || (len(v.Volumes()) > 0) != destroy {
			t.Errorf("%s has %d fields and volumes %v", v, fields, v.Volumes())
		}
	}
	if len(kinds) != len(model.OpKinds()) {
		t.Error("a kind of operation has no type, or two:", kinds)
	}
}

func TestDisabledMarquee(t *testing.T) {
	w := newWorld(1, t.Fatalf)
	w.marquee.Admin = model.AdminDisabled
	w.host.ending = observe.EndedDial
	steps := w.pass(time.Minute)
	if len(steps) != 1 || steps[0].Act != (decide.Refuse{Guard: decide.GuardDisabled}) {
		t.Error(steps)
	}
}

func TestApplyLeavesOthersAlone(t *testing.T) {
	p := playground("shop", "p1")
	q, there := decide.Apply(p, decide.Step{Playground: "p2", Act: decide.Delete{}}, model.DefaultPolicy(), decide.Stamp{At: noon})
	if !there || fmt.Sprint(p) != fmt.Sprint(q) {
		t.Error("a step about another playground was applied")
	}
}
