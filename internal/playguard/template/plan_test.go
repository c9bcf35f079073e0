package template

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/branch"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
)

func TestMatches(t *testing.T) {
	p := Preview{Branches: []string{"feature/*", "fix/**", "!feature/wip-*"}}
	for name, want := range map[string]bool{
		"feature/a": true, "feature/a/b": false, "fix/a/b": true, "fix/": false, "feature/wip-1": false, "main": false, "": false,
	} {
		if p.Matches(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

func row(b string, change func(*records.Playground)) records.Playground {
	p := records.Playground{Playground: model.Playground{ID: model.PlaygroundID("p" + b), Intent: model.IntentUp}, Source: records.Source{Branch: b, Preview: "pr"}}
	if change != nil {
		change(&p)
	}
	return p
}

func TestPlan(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	s := Seen{
		Now: now, Preview: Preview{Name: "pr", Branches: []string{"f*"}, Most: 4, Life: 24 * time.Hour}, Branches: []string{"main", "f2", "f1", "f3", "f5"},
		Playgrounds: []records.Playground{
			row("f1", func(p *records.Playground) { p.CreatedAt = now }),
			row("gone", nil), row("f5", func(p *records.Playground) { p.Source.Ended = true }),
		},
	}
	got := Decide(s)
	want := Plan{
		Make: []string{"f2"}, LeftOut: []string{"f3"}, End: []model.PlaygroundID{"pgone"}, Keep: []model.PlaygroundID{"pf5"},
		Life: map[model.PlaygroundID]time.Time{"pf1": now.Add(24 * time.Hour)},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Never more than there may be, never two of a branch, never one of a branch that
// is not there or does not match, and what has its end is not ended again.
func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		branches := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"f1", "f2", "f3", "f4", "g1", "g2", "main"}), 0, 7, rapid.ID[string]).Draw(t, "branches")
		s := Seen{Preview: Preview{Name: "pr", Branches: []string{"f*", "!f4"}, Most: rapid.IntRange(1, 4).Draw(t, "most")}, Branches: branches}
		for _, b := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"f1", "f2", "f3", "f4", "g1"}), 0, 4, rapid.ID[string]).Draw(t, "have") {
			s.Playgrounds = append(s.Playgrounds, row(b, func(p *records.Playground) { p.Source.Ended = rapid.Bool().Draw(t, "ended") }))
		}
		plan := Decide(s)
		if len(plan.Make) > 0 && len(plan.Make)+len(s.Playgrounds) > s.Preview.Most {
			t.Fatalf("%d more beside %d, of %d", len(plan.Make), len(s.Playgrounds), s.Preview.Most)
		}
		for _, b := range append(slices.Clone(plan.Make), plan.LeftOut...) {
			if !slices.Contains(branches, b) || !s.Preview.Matches(b) || slices.ContainsFunc(s.Playgrounds, func(p records.Playground) bool { return p.Source.Branch == b }) {
				t.Fatalf("branch %s", b)
			}
		}
		for _, p := range s.Playgrounds {
			there := slices.Contains(branches, p.Source.Branch) && s.Preview.Matches(p.Source.Branch)
			if end := slices.Contains(plan.End, p.ID); end != (!there && !p.Source.Ended) {
				t.Fatalf("%s: end %v", p.Source.Branch, end)
			}
			if keep := slices.Contains(plan.Keep, p.ID); keep != (there && p.Source.Ended) {
				t.Fatalf("%s: keep %v", p.Source.Branch, keep)
			}
		}
	})
}

func TestNames(t *testing.T) {
	seen := map[string]string{}
	for _, b := range []string{"a/b", "a-b", "A-b", "a_b", "a-b-", "ü", "feature/a-very-long-name-of-a-branch-that-goes-on", "feature/a-very-long-name-of-a-branch-that-goes-off"} {
		name := NameOf("pr", b)
		if other, twice := seen[name]; twice || len(name) > 40 {
			t.Errorf("%q and %q are both %s", b, other, name)
		}
		seen[name] = b
	}
	if NameOf("pr", "a-b") != "pr-a-b" {
		t.Error(NameOf("pr", "a-b"))
	}
}

func TestFill(t *testing.T) {
	tmpl := Template{Name: "shop", Repository: "https://x/y", Variables: []Variable{
		{Name: "SIZE", Type: TypeChoice, Choices: []string{"s", "l"}, Default: "s"}, {Name: "N", Type: TypeInteger, Required: true},
		{Name: "ON", Type: TypeBoolean}, {Name: "HOST", Pattern: "[a-z.]+", Default: "a.b"}, {Name: "KEY", Sensitive: true},
	}}
	if err := tmpl.Check(); err != nil {
		t.Fatal(err)
	}
	got, err := tmpl.Fill(map[string]string{"N": "3"}, map[string]string{"KEY": "mine"})
	want := map[string]branch.Variable{"SIZE": {Value: "s"}, "N": {Value: "3"}, "ON": {}, "HOST": {Value: "a.b"}, "KEY": {Secret: "mine"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(err, diff)
	}
	for name, values := range map[string]map[string]string{
		"missing": {}, "no integer": {"N": "x"}, "no choice": {"N": "1", "SIZE": "m"}, "no boolean": {"N": "1", "ON": "yes"}, "no match": {"N": "1", "HOST": "a b"},
		"a line more": {"N": "1", "HOST": "a.b\nx"}, "unknown": {"N": "1", "X": ""}, "a value that is to be secret": {"N": "1", "KEY": "open"},
	} {
		if out, err := tmpl.Fill(values, nil); err == nil {
			t.Errorf("%s: %v", name, out)
		}
	}
	_, err = tmpl.Fill(nil, nil)
	var e *fleet.Error
	if !errors.As(err, &e) || !strings.Contains(e.Details[fleet.DetailRemedy], "--var N=VALUE") {
		t.Errorf("%v does not say how the variable is given", err)
	}
	for _, bad := range []Variable{
		{Name: "1"}, {Name: "A", Type: "float"}, {Name: "A", Type: TypeChoice}, {Name: "A", Sensitive: true, Default: "x"}, {Name: "A", Pattern: "("},
		{Name: "A", Type: TypeInteger, Default: "x"}, {Name: "A", Required: true, Default: "x"},
	} {
		if err := (Template{Name: "t", Variables: []Variable{bad}}).Check(); err == nil {
			t.Errorf("%+v passes", bad)
		}
	}
}

// Branches that cannot get a playground take nobody's place, and how many there
// are besides those that are named is told.
func TestFillAPreview(t *testing.T) {
	var wanted []string
	for i := range 60 {
		wanted = append(wanted, fmt.Sprintf("b%02d", i))
	}
	taken := func(n int) func(string) error {
		return func(b string) error {
			if b < fmt.Sprintf("b%02d", n) {
				return errors.New("the name is taken")
			}
			return nil
		}
	}
	for _, c := range []struct {
		taken, left int
		next, err   string
	}{
		{0, 55, "b05", ""}, {1, 54, "b06", "branch b00: the name is taken"}, {8, 47, "b13", "branch b00: the name is taken; and 7 more branches"},
		{60, 40, "b20", "branch b00: the name is taken; and 19 more branches"},
	} {
		left, _, err := fill(Plan{Make: wanted[:5:5], LeftOut: wanted[5:]}, taken(c.taken))
		if len(left) != c.left || left[0] != c.next || err == nil != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%d names are taken: %d left, from %s: %v", c.taken, len(left), left[0], err)
		}
	}
	// Where too many cannot, the rounds go through all the same.
	made, p := map[string]bool{}, Preview{Branches: []string{"*"}, Most: 5}
	for range 3 {
		_, from, _ := fill(Decide(Seen{Preview: p, Branches: wanted}), func(b string) error { // that some fail is told above
			err := taken(55)(b)
			made[b] = err == nil
			return err
		})
		p.From = from
	}
	if len(made) != len(wanted) || !made["b55"] || !made["b59"] || p.From != "" {
		t.Errorf("three rounds tried %d of %d branches, the next begins at %q", len(made), len(wanted), p.From)
	}
	if got := some(wanted); len(got) != 21 || got[20] != "and 40 more" {
		t.Errorf("%v", got)
	}
	if got := some(wanted[:20]); !slices.Equal(got, wanted[:20]) {
		t.Errorf("%v", got)
	}
}
