package branch

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/records"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func seen(change func(*Sight)) Sight {
	s := Sight{
		Now: noon, Policy: model.DefaultPolicy(), Present: true, Heard: Heard{At: noon, Head: "h2"},
		Row: records.Playground{
			Playground: model.Playground{Intent: model.IntentUp, State: model.StateRunning},
			Source:     records.Source{Repository: "r", Branch: "main", Head: "h1", Commit: "h1"},
		},
	}
	if change != nil {
		change(&s)
	}
	return s
}

func TestDecide(t *testing.T) {
	src := func(s *Sight) *records.Source { return &s.Row.Source }
	for name, c := range map[string]struct {
		change  func(*Sight)
		advance bool
		problem records.Problem
		keep    bool
	}{
		"the branch went on":         {nil, true, "", false},
		"nothing new":                {func(s *Sight) { s.Heard.Head = "h1" }, false, "", false},
		"nothing is known":           {func(s *Sight) { s.Heard = Heard{} }, false, "", true},
		"stopped":                    {func(s *Sight) { s.Row.Intent, s.Row.State = model.IntentStopped, model.StateStopped }, false, "", true},
		"parked":                     {func(s *Sight) { s.Row.State = model.StateHasChanges }, false, "", true},
		"being made":                 {func(s *Sight) { s.Row.State = model.StateInProgress }, false, "", true},
		"work":                       {func(s *Sight) { s.Dirt, s.DirtWhy = observe.Dirty, "stashes" }, false, records.ProblemWork, false},
		"work unknown":               {func(s *Sight) { s.Dirt = observe.DirtUnknown }, false, records.ProblemWork, false},
		"work, and nothing new":      {func(s *Sight) { s.Dirt, s.Heard.Head = observe.Dirty, "h1" }, false, "", false},
		"gone":                       {func(s *Sight) { s.Heard = Heard{At: noon, Gone: true} }, false, records.ProblemGone, false},
		"not asked yet again":        {func(s *Sight) { s.Heard.Failures = 1 }, true, "", false},
		"cannot ask":                 {func(s *Sight) { s.Heard.Failures, s.Heard.Why = 3, "refused" }, false, records.ProblemAsk, false},
		"rewritten, as before":       {func(s *Sight) { src(s).Problem, src(s).Remote = records.ProblemForced, "h2" }, false, "", true},
		"rewritten, and moved since": {func(s *Sight) { src(s).Problem, src(s).Remote = records.ProblemForced, "h0" }, true, "", false},
		"rewritten, and accepted":    {func(s *Sight) { src(s).Problem, src(s).Remote, src(s).Force = records.ProblemForced, "h2", true }, true, "", false},
		"refused":                    {func(s *Sight) { s.Heard.Head, src(s).Head, src(s).Refused = "h2", "h2", "h2" }, false, "", true},
		"refused, and moved since":   {func(s *Sight) { src(s).Refused, src(s).Commit = "h1", "h0" }, true, "", false},
		"to be read again":           {func(s *Sight) { s.Heard.Head, src(s).Commit = "h1", "" }, true, "", false},
		"to be read again, later":    {func(s *Sight) { s.Heard.Head, src(s).Commit = "h1", ""; s.Row.LastRollout = &records.Rollout{At: noon} }, false, "", true},
		"a fetch failed just now":    {func(s *Sight) { src(s).Problem, src(s).Remote, src(s).ProblemAt = records.ProblemFetch, "h2", noon }, false, "", true},
		"a fetch failed a while ago": {func(s *Sight) {
			src(s).Problem, src(s).Remote, src(s).ProblemAt = records.ProblemFetch, "h2", noon.Add(-time.Hour)
		}, true, "", false},
		"the checkout is not there":      {func(s *Sight) { s.Present, s.Heard.Head = false, "h1" }, true, "", false},
		"in error, and the branch moved": {func(s *Sight) { s.Row.State = model.StateError }, true, "", false},
		"in error, and nothing new":      {func(s *Sight) { s.Row.State, s.Heard.Head = model.StateError, "h1" }, false, "", false},
	} {
		got := Decide(seen(c.change))
		if got.Advance != c.advance || got.Problem != c.problem || got.Keep != c.keep {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// Whatever else is so: a checkout that was seen and is not clean does not go
// forward, and nothing does that people want stopped or gone.
func TestNeverOverWork(t *testing.T) {
	states := []model.State{
		model.StatePending, model.StateInProgress, model.StateRunning, model.StateHasChanges, model.StateError,
		model.StateStopping, model.StateStopped, model.StateCompleted, model.StateDestroying,
	}
	heads := []string{"", "h1", "h2", "h3"}
	pick := rapid.SampledFrom(heads)
	rapid.Check(t, func(t *rapid.T) {
		s := seen(nil)
		s.Row.State = rapid.SampledFrom(states).Draw(t, "state")
		s.Row.Intent = rapid.SampledFrom([]model.Intent{model.IntentUp, model.IntentStopped, model.IntentGone}).Draw(t, "intent")
		s.Dirt = rapid.SampledFrom([]observe.Dirt{observe.Clean, observe.DirtUnknown, observe.Dirty}).Draw(t, "dirt")
		s.Present = rapid.Bool().Draw(t, "present")
		s.Heard.Head, s.Row.Source.Head, s.Row.Source.Commit, s.Row.Source.Refused, s.Row.Source.Remote = pick.Draw(t, "heard"), pick.Draw(t, "head"), pick.Draw(t, "commit"), pick.Draw(t, "refused"), pick.Draw(t, "remote")
		s.Heard.Failures = rapid.IntRange(0, 5).Draw(t, "failures")
		s.Row.Source.Force = rapid.Bool().Draw(t, "force")
		s.Row.Source.Problem = rapid.SampledFrom([]records.Problem{"", records.ProblemForced, records.ProblemWork, records.ProblemFetch, records.ProblemElsewhere}).Draw(t, "problem")
		got := Decide(s)
		if got.Advance && (s.Present && s.Dirt != observe.Clean || s.Row.Intent != model.IntentUp || s.Row.State != model.StateRunning && s.Row.State != model.StateError) {
			t.Fatalf("%+v leads to %+v", s, got)
		}
		if got.Advance && (got.Problem != "" || got.Keep) {
			t.Fatalf("%+v is more than one thing", got)
		}
	})
}

func TestAddress(t *testing.T) {
	for text, want := range map[string]string{
		"https://git.example.org/a/b.git": "https://git.example.org/a/b.git", "git@git.example.org:a/b.git": "ssh://git@git.example.org/a/b.git",
		"ssh://git@git.example.org:2222/a/b": "ssh://git@git.example.org:2222/a/b", "http://127.0.0.1:80/a": "http://127.0.0.1:80/a",
	} {
		if got, err := Address(text); got != want || err != nil {
			t.Errorf("%s: %q %v", text, got, err)
		}
	}
	for _, bad := range []string{
		"", "/srv/git/a", "file:///srv/git/a", "git://git.example.org/a", "http://git.example.org/a", "https://user:secret@git.example.org/a", "https://token@git.example.org/a",
		"https://git.example.org", "https://git.example.org/a?x=1", "ext::sh -c id", "https://git.example.org/a b", "--upload-pack=x", "https://git.example.org/a'b", "ssh://git@host/a\nb",
	} {
		if got, err := Address(bad); err == nil {
			t.Errorf("%q passes as %q", bad, got)
		}
	}
}

func TestRequests(t *testing.T) {
	for name, r := range map[string]Request{
		"a path above":      {Repository: "https://x/y", Path: "../compose.yaml"},
		"a pattern as path": {Repository: "https://x/y", Path: ":(glob)*"},
		"an option":         {Repository: "https://x/y", Branch: "--force"},
		"a ref":             {Repository: "https://x/y", Branch: "a..b"},
		"ssh without keys":  {Repository: "git@x:y"},
		"depth":             {Repository: "https://x/y", Depth: -1},
		"pull":              {Repository: "https://x/y", Pull: "often"},
		"both":              {Repository: "https://x/y", Variables: map[string]Variable{"A": {Value: "x", Secret: "y"}}},
	} {
		if _, err := r.source(); err == nil {
			t.Errorf("%s passes", name)
		}
	}
	if got := checkoutName("https://x/shop.git", "feature/a b"); got != "shop-feature-a-b" {
		t.Error(got)
	}
}
