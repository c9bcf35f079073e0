package template

import (
	"context"
	"testing"

	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A push is news for every preview of its repository, whichever way its template
// goes there, and for no other owner's.
func TestSeekByEitherAddress(t *testing.T) {
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
