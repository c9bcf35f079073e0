package decide_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// columns are those of the decision table, in its order.
var columns = []struct {
	name string
	set  func(h *modelHost, s *stack)
}{
	{"unseen", func(h *modelHost, _ *stack) { h.ending = observe.EndedDial }},
	{"partial", func(h *modelHost, _ *stack) { h.cut = 400 }},
	{"healthy", func(*modelHost, *stack) {}},
	{"not healthy", func(_ *modelHost, s *stack) { s.containers[0].health = "unhealthy" }},
	{"at rest", func(_ *modelHost, s *stack) { s.end(0, noon.Add(-time.Minute)) }},
	{"crashed", func(_ *modelHost, s *stack) { s.end(1, noon.Add(-time.Minute)) }},
	{"absent", func(_ *modelHost, s *stack) { s.containers = nil }},
	{"nothing left", func(_ *modelHost, s *stack) { *s = stack{id: s.id} }},
}

// rows are those of the decision table. A cell is what happens at the first
// look and, after a slash, what happens at the second; "=" is the same again.
var rows = []struct {
	name  string
	set   func(p *model.Playground)
	cells [8]string
}{
	{"pending, no job", func(p *model.Playground) { p.State, p.Owed = model.StatePending, model.ActionCreate },
		[8]string{"unseen", "partial", "→running", "queue", "queue", "queue", "queue", "queue"}},
	{"in_progress fresh", func(p *model.Playground) { p.State, p.StateSince = model.StateInProgress, noon },
		[8]string{"unseen", "partial", "→running", "young", "young", "young", "young", "young"}},
	{"in_progress stale", func(p *model.Playground) { p.State = model.StateInProgress },
		[8]string{"unseen", "partial", "→running", "→pending", "→pending", "→pending", "→pending", "→pending"}},
	{"running", func(p *model.Playground) { p.Failure = recoverable },
		[8]string{"unseen", "partial", "clear", "strike/→pending", "strike/→stopped", "strike/up", "strike/→stopped", "strike/→stopped"}},
	{"running, and the host booted", func(p *model.Playground) { p.LastUp.BootID = "boot0" },
		[8]string{"unseen", "partial", "keep sight", "strike/→pending", "strike/up", "strike/up", "strike/up", "strike/→pending"}},
	{"has_changes", func(p *model.Playground) { p.State = model.StateHasChanges },
		[8]string{"unseen", "partial", "keep", "parked flag", "parked flag", "parked flag", "parked flag", "parked flag"}},
	{"error temporary", func(p *model.Playground) { p.State, p.Failure = model.StateError, recoverable },
		[8]string{"unseen", "partial", "→running", "→pending", "→pending", "→pending", "→pending", "→pending"}},
	{"error final", func(p *model.Playground) { p.State, p.Failure = model.StateError, final },
		[8]string{"unseen", "partial", "keep", "keep", "keep", "keep", "keep", "keep"}},
	{"error final, recoverable", func(p *model.Playground) { p.State, p.Failure = model.StateError, spent },
		[8]string{"unseen", "partial", "→running", "keep", "keep", "keep", "keep", "keep"}},
	{"stopping", func(p *model.Playground) { p.State, p.Intent = model.StateStopping, model.IntentStopped },
		[8]string{"unseen", "partial", "stop", "stop", "→stopped", "→stopped", "→stopped", "→stopped"}},
	{"stopped", func(p *model.Playground) { p.State, p.Intent = model.StateStopped, model.IntentStopped },
		[8]string{"unseen", "partial", "→running", "keep flag", "keep", "keep", "keep", "keep"}},
	{"stopped just now", func(p *model.Playground) {
		p.State, p.Intent, p.StateSince = model.StateStopped, model.IntentStopped, noon.Add(-time.Minute)
	}, [8]string{"unseen", "partial", "apply_grace", "keep flag", "keep", "keep", "keep", "keep"}},
	{"completed", func(p *model.Playground) { p.State, p.Intent = model.StateCompleted, model.IntentJob },
		[8]string{"unseen", "partial", "down", "down", "keep", "keep", "keep", "keep"}},
	{"destroying", func(p *model.Playground) { p.State, p.Intent = model.StateDestroying, model.IntentGone },
		[8]string{"unseen", "partial", "destroy", "destroy", "destroy", "destroy", "destroy", "strike/delete"}},
}

var (
	recoverable = model.Failure{Class: model.ClassRecoverable, Category: model.CategoryTimeout}
	final       = model.Failure{Class: model.ClassUser, Category: model.CategoryComposeFailed}
	spent       = model.Failure{Class: model.ClassUser, Category: model.CategoryRepairsSpent}
)

// TestTable is the decision table of the specification, cell by cell.
func TestTable(t *testing.T) {
	for _, row := range rows {
		for i, col := range columns {
			t.Run(row.name+"/"+col.name, func(t *testing.T) {
				h := newHost()
				p := playground("shop", "p1")
				h.stack(p.Project).place(services, "c1")
				col.set(h, h.stack(p.Project))
				row.set(&p)
				if p.LastUp.BootID != h.boot {
					h.booted = noon.Add(-30 * time.Second) // after the containers ended
				}
				m := marquee(h)
				first := decideOne(h, m, p, noon)
				got := summary(first)
				for _, s := range first {
					if s.Playground == p.ID {
						p, _ = decide.Apply(p, s, model.DefaultPolicy(), decide.Stamp{At: noon})
					}
				}
				if strings.Contains(row.cells[i], "/") {
					got += "/" + summary(decideOne(h, m, p, noon.Add(30*time.Second)))
				}
				if diff := cmp.Diff(row.cells[i], got); diff != "" {
					t.Errorf("(-want +got):\n%s%v", diff, first)
				}
			})
		}
	}
}

func decideOne(h *modelHost, m model.Marquee, p model.Playground, now time.Time) []decide.Step {
	return decide.Decide(decide.Input{
		Now: now, Policy: model.DefaultPolicy(), Marquee: m, Playgrounds: []model.Playground{p}, Look: h.look(now),
		Jobs: map[model.PlaygroundID]decide.Job{p.ID: decide.JobNone}, Epoch: 7, Sent: 1, Heard: 1, Rows: 1,
	})
}

// summary names the steps about playgrounds in one word each.
func summary(steps []decide.Step) string {
	var words []string
	for _, s := range steps {
		if s.Playground != "" {
			words = append(words, word(s.Act))
		}
	}
	return strings.Join(words, " ")
}

func word(a decide.Act) string {
	switch a := a.(type) {
	case decide.Keep:
		return "keep"
	case decide.Refuse:
		return string(a.Guard)
	case decide.Move:
		return "→" + string(a.To)
	case decide.Strike:
		if a.Strikes.Count == 0 {
			return "calm"
		}
		return "strike"
	case decide.Remote:
		return string(decide.VerbOf(a.Op).Kind())
	}
	return strings.ToLower(strings.TrimPrefix(strings.TrimSuffix(fmt.Sprintf("%T", a), "Failure"), "decide."))
}
