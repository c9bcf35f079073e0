package decide_test

import (
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

// holds reports whether a checkout of the stack holds work, or may.
func (s *stack) holds() bool {
	for _, git := range s.git {
		if git != gitClean {
			return true
		}
	}
	return false
}

// settled writes the end of an operation that was carried out at once.
func settled(p model.Playground, exit int, at time.Time) model.Playground {
	q, _ := decide.Apply(p, decide.Step{Playground: p.ID, Rule: decide.RuleOp, Act: decide.Settle{Op: p.Op.ID, Exit: exit}}, model.DefaultPolicy(), decide.Stamp{At: at})
	return q
}

// ending reads the words of a record that are about its end.
func (s *scenario) ending(p *model.Playground, key, value string) {
	if p.Trick != nil {
		own := *p.Trick
		p.Trick = &own
	}
	switch key {
	case "expires": // from now on, set as long ago as it lasts
		p.Expiry = model.Until(s.now.Add(s.duration(value)), s.now.Add(-s.duration(value)))
	case "set":
		p.Expiry.SetAt = s.now.Add(-s.duration(value))
	case "trick":
		p.Intent = model.IntentJob
		p.Trick = &model.Trick{Watch: strings.Split(value, ","), Since: s.now, Attempt: 1, Backoff: time.Minute}
	case "retries":
		p.Trick.Retries = s.number(value)
	case "deadline":
		p.Trick.Deadline = s.duration(value)
	case "keep":
		p.Trick.Keep = s.duration(value)
	case "cancelled":
		p.Trick.Ending = model.TrickCancelled
	case "logs":
		attempts := slices.Clone(p.Trick.Attempts)
		attempts[len(attempts)-1].Logs = model.LogState(value)
		p.Trick.Attempts = attempts
	default:
		s.t.Fatalf("unknown word %q", key)
	}
}

// limit sets an end, or takes it away.
func (w *world) limit(id model.PlaygroundID, how int) {
	p := w.rows[id]
	lives := []time.Duration{0, time.Minute, 10 * time.Minute, 2 * time.Hour, 30 * time.Hour}
	if p.Expiry = (model.Expiry{}); how%len(lives) > 0 {
		p.Expiry = model.Until(w.now.Add(lives[how%len(lives)]), w.now)
	}
	w.rows[id] = p
}

// mayReclaim checks that what is taken away is due, was warned of, and holds no
// work that anybody could see.
func (w *world) mayReclaim(in decide.Input, p model.Playground, s decide.Step, r decide.Reclaim) {
	if p.KeepVolumes && len(r.Volumes) > 0 {
		w.fail("property 4: %v of a playground that keeps its volumes", s)
	}
	if dirt, why := in.Look.Project(p.Project).Dirt(); dirt != observe.Clean {
		w.fail("property 2: takes away what holds work, or may (%s): %v", why, s)
	}
	if p.Trick != nil {
		if p.State != model.StateCompleted || p.Trick.Open() {
			w.fail("takes away a trick that is %s: %v", p.State, s)
		}
		return
	}
	e := p.Expiry
	switch {
	case p.State != model.StateRunning && p.State != model.StateHasChanges:
		w.fail("expires what is %s: %v", p.State, s)
	case e.IsZero() || in.Now.Before(e.At):
		w.fail("expires before its time: %v", s)
	case e.WarnedAt.IsZero() || in.Now.Sub(e.WarnedAt) < min(in.Policy.ExpiryGrace, e.At.Sub(e.SetAt)/2):
		w.fail("expires without having warned in time: %v", s)
	}
}

// ends checks the budget of what is taken away.
func (w *world) ends(in decide.Input, steps []decide.Step) {
	n := 0
	for _, p := range in.Playgrounds {
		if p.Op.Kind == model.OpReclaim {
			n++
		}
	}
	for _, s := range steps {
		if r, ok := s.Act.(decide.Remote); ok {
			if _, ok := r.Op.(decide.Reclaim); ok {
				n++
			}
		}
	}
	if n > in.Policy.ReclaimsPerPass {
		w.fail("property 6: %d are taken away at once", n)
	}
}

// TestExpiryKeepsWork: whatever git says that is not wholly clean parks what is
// due, and taking it away waits for a look that shows nothing.
func TestExpiryKeepsWork(t *testing.T) {
	lines := []string{"repository=yes", "head=yes", "busy=", "changed=0", "unpushed=0", "stashes=0"}
	bad := []string{"repository=no", "head=no", "busy=index.lock", "changed=1", "unpushed=2", "stashes=1"}
	for i := range 3 * len(lines) {
		said := slices.Clone(lines)
		switch at := i % len(lines); i / len(lines) {
		case 0:
			said[at] = bad[at]
		case 1:
			said = slices.Delete(said, at, at+1)
			if lines[at] == "busy=" { // older runners do not say it
				continue
			}
		case 2:
			said[at] = strings.Replace(lines[at], "=", "=x", 1)
		}
		text := strings.Join(said, "\n") + "\n"
		h, p := newHost(), playground("shop", "p1")
		st := h.stack(p.Project)
		st.place(services, "c1")
		st.git = map[string]string{"web": text}
		p.Expiry = model.Expiry{At: noon.Add(-time.Hour), SetAt: noon.Add(-9 * time.Hour), Warned: time.Hour, WarnedAt: noon.Add(-2 * time.Hour)}
		for _, state := range []model.State{model.StateRunning, model.StateHasChanges} {
			p.State = state
			steps := decideOne(h, marquee(h), p, noon)
			if slices.ContainsFunc(steps, decide.Step.Works) {
				t.Errorf("%q, %s: %v", text, state, steps)
			}
			if m, ok := steps[0].Act.(decide.Move); state == model.StateRunning && (!ok || m.To != model.StateHasChanges) {
				t.Errorf("%q is not parked: %v", text, steps)
			}
		}
	}
}

// TestExpiryTime: never before its time by our clock, always after at least one
// warning that left the grace, each warning once, and it does come.
func TestExpiryTime(t *testing.T) {
	pol := model.DefaultPolicy()
	rapid.Check(t, func(t *rapid.T) {
		life := time.Duration(rapid.Int64Range(int64(model.MinLife), int64(60*24*time.Hour)).Draw(t, "life"))
		e := model.Until(noon.Add(life), noon)
		now, given := noon, map[time.Duration]int{}
		for range 5000 {
			step := rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour, 26 * time.Hour}).Draw(t, "gap")
			if left := e.At.Sub(now); step > time.Minute && left < 2*time.Hour && rapid.Bool().Draw(t, "awake") {
				step = time.Minute
			}
			now = now.Add(step)
			if lead, owed := e.Warning(now, pol); owed {
				e.Warned, e.WarnedAt = lead, now
				given[lead]++
			}
			if rapid.IntRange(0, 99).Draw(t, "extend") == 0 && now.Sub(noon) < 90*24*time.Hour {
				before := e.At
				e = e.Extended(time.Hour, now)
				clear(given)
				if e.At.Before(before) || e.Due(now, pol) {
					t.Fatal("an extension shortens it")
				}
			}
			for lead, n := range given {
				if n > 1 {
					t.Fatalf("warned %d times %s before", n, lead)
				}
			}
			if !e.Due(now, pol) {
				continue
			}
			if now.Before(e.At) || e.WarnedAt.IsZero() || now.Sub(e.WarnedAt) < min(pol.ExpiryGrace, e.At.Sub(e.SetAt)/2) {
				t.Fatalf("due too early: %+v at %s", e, now)
			}
			return
		}
		if now.After(e.At.Add(time.Hour)) {
			t.Fatalf("it never comes: %+v at %s", e, now)
		}
	})
}

// TestHostClockSaysNothing: a host whose clock is off by an hour changes no end.
func TestHostClockSaysNothing(t *testing.T) {
	for _, e := range []model.Expiry{
		model.Until(noon.Add(30*time.Minute), noon.Add(-time.Hour)),
		{At: noon.Add(-time.Minute), SetAt: noon.Add(-9 * time.Hour), Warned: time.Hour, WarnedAt: noon.Add(-time.Hour)},
	} {
		var first []decide.Step
		for _, off := range []time.Duration{0, time.Hour, -time.Hour} {
			h, p := newHost(), playground("shop", "p1")
			h.off = off
			h.stack(p.Project).place(services, "c1")
			p.Expiry = e
			steps := decideOne(h, marquee(h), p, noon)
			if first == nil {
				first = steps
			}
			if !reflect.DeepEqual(steps, first) {
				t.Errorf("off by %s: %v, else %v", off, steps, first)
			}
		}
	}
}
