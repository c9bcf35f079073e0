package template

import (
	"context"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func openStore(t *testing.T) *state.Store {
	t.Helper()
	j := memory.New(memory.Options{})
	store, err := state.Open(t.Context(), state.Config{Journal: j, Lease: j})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return store
}

// A push is news for every preview of its repository, whichever way its template
// goes there, and for no other owner's.
func TestSeekByEitherAddress(t *testing.T) {
	store := openStore(t)
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
	store := openStore(t)
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
