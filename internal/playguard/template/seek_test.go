package template

import (
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A push is news for every preview of its repository, whichever way its template
// goes there, and for no other owner's.
func TestSeekByEitherAddress(t *testing.T) {
	store := storetest.Open(t)
	s := &Service{Store: store}
	for id, repository := range map[string]string{
		"ssh": "ssh://git@git.example.org:2222/shop.git", "https": "https://git.example.org/shop", "other": "https://git.example.org/blog.git",
	} {
		if _, err := store.Update(t.Context(), func(tx *state.Tx) error {
			if err := Templates.Put(tx, id, &Template{ID: id, Owner: "ann", Name: id, Repository: repository}); err != nil {
				return err
			}
			return Previews.Put(tx, id, &Preview{ID: id, Owner: "ann", Name: id, Template: id})
		}); err != nil {
			t.Fatal(err)
		}
	}
	s.Seek("bob", "https://git.example.org/shop.git")
	s.Seek("ann", "https://git.example.org/shop.git")
	for id, want := range map[string]bool{"ssh": true, "https": true, "other": false} {
		if got := s.take(id); got != want {
			t.Errorf("%s is looked through: %v, want %v", id, got, want)
		}
	}
	if s.Seek("bob", "ssh://git@git.example.org/shop"); s.take("https") {
		t.Error("another owner's push is news")
	}
}

// A preview makes nothing in the name of somebody who may not any more, and says
// why. No repository is asked for it.
func TestAPreviewsOwnerIsGone(t *testing.T) {
	store := storetest.Open(t)
	s := &Service{Store: store, Acting: func(state.Reader) func(string, fleet.Role) bool {
		return func(owner string, least fleet.Role) bool { return owner != "ann" || least != fleet.RoleUser }
	}}
	p := Preview{ID: "p", Owner: "ann", Name: "pr", Template: "t"}
	if _, err := store.Update(t.Context(), func(tx *state.Tx) error {
		if err := Templates.Put(tx, "t", &Template{ID: "t", Owner: "ann", Name: "t", Repository: "https://git.example.org/shop"}); err != nil {
			return err
		}
		return Previews.Put(tx, p.ID, &p)
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.Round(t.Context(), p); fleet.CodeOf(err) != fleet.CodeForbidden {
		t.Errorf("%v", err)
	}
	list, err := s.ListPreviews(func(string) bool { return true })
	if err != nil || len(list) != 1 || !strings.Contains(list[0].Failure, "no API key acts for ann") {
		t.Errorf("%+v %v", list, err)
	}
}

// One look that shows no branch is no end: there is an hour in which any other takes
// it back, the warning before, and no end while nobody knows.
func TestEndOfAPreviewsPlayground(t *testing.T) {
	store := storetest.Open(t)
	s, p, policy := &Service{Store: store}, Preview{ID: "pr", Owner: "ann", Name: "pr", Life: 10 * time.Minute}, model.DefaultPolicy()
	of := func(change func(*records.Playground)) records.Playground {
		t.Helper()
		var out records.Playground
		if _, err := store.Update(t.Context(), func(tx *state.Tx) error {
			row, ok := records.Playgrounds.Get(tx, "p1")
			if !ok {
				row = &records.Playground{Playground: model.Playground{ID: "p1", Intent: model.IntentUp}, Owner: "ann", Name: "pr-a", Source: records.Source{Branch: "a", Preview: "pr"}}
			}
			out = *row
			if change != nil {
				change(&out)
				return records.PutPlayground(tx, out)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	plan := func(plan Plan) records.Playground {
		t.Helper()
		if err := s.ends(t.Context(), p, plan); err != nil {
			t.Fatal(err)
		}
		return of(nil)
	}
	of(func(*records.Playground) {})
	ids := []model.PlaygroundID{"p1"}

	e := plan(Plan{End: ids}).Expiry
	if e.At.Sub(e.SetAt) != time.Hour || e.Ends(policy) != e.At {
		t.Errorf("it has %s", e.At.Sub(e.SetAt))
	}
	if _, owed := e.Warning(e.At.Add(-policy.ExpiryLastWarning), policy); !owed || e.Due(e.At, policy) {
		t.Error("it goes unwarned")
	}
	of(func(row *records.Playground) { // its end is near, and it was warned of
		row.Expiry.At, row.Expiry.Warned, row.Expiry.WarnedAt = time.Now().Add(time.Second), policy.ExpiryLastWarning, time.Now().Add(-policy.ExpiryGrace)
	})
	e = plan(Plan{Unsure: ending([]records.Playground{of(nil)})}).Expiry
	if left := time.Until(e.At); left < notBefore-time.Minute || e.Warned == 0 {
		t.Errorf("while nobody knows it has %s, warned %s before", left, e.Warned)
	}
	of(func(row *records.Playground) { row.Expiry = model.Expiry{} }) // somebody said that it never ends
	if e = plan(Plan{Unsure: ending([]records.Playground{of(nil)})}).Expiry; !e.IsZero() {
		t.Errorf("what never ends has %s while nobody knows", time.Until(e.At))
	}
	if row := plan(Plan{Keep: ids}); !row.Expiry.IsZero() || row.Source.Ended {
		t.Errorf("its branch is back: %+v", row.Expiry)
	}
	e = plan(Plan{Life: map[model.PlaygroundID]time.Time{"p1": time.Now().Add(-time.Hour)}}).Expiry // an old one is given a short life
	if e.At.Sub(e.SetAt) != p.Life {
		t.Errorf("it has %s of its life", e.At.Sub(e.SetAt))
	}
	for n, want := range map[int]bool{0: false, 1: true, maxBranches: true, maxBranches + 1: false} {
		if err := believable(make([]string, n)); (err == nil) != want {
			t.Errorf("%d branches: %v", n, err)
		}
	}
}
