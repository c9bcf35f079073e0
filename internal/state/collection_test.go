package state_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/store/storetest"
)

type note struct {
	Text string `json:"text"`
}

var notes = state.NewCollection[note]("settings")

func TestACollectionHoldsDocuments(t *testing.T) {
	j := memory.New(memory.Options{})
	s := storetest.OpenOn(t, j)
	sub := s.Watch(t.Context())
	update := func(fn func(*state.Tx) error) {
		t.Helper()
		if _, err := s.Update(t.Context(), fn); err != nil {
			t.Fatal(err)
		}
	}
	mine := note{"one"}
	update(func(tx *state.Tx) error { return notes.Put(tx, "a", &mine) })
	mine.Text = "changed by its owner"
	update(func(tx *state.Tx) error {
		if n, ok := notes.Get(tx, "a"); !ok || n.Text != "one" {
			t.Errorf("within an update: %v, %v", n, ok)
		}
		for _, id := range []string{"b/2", "b/1", "c"} {
			if err := notes.Put(tx, id, &note{id}); err != nil {
				return err
			}
		}
		return notes.Delete(tx, "never there")
	})
	if _, err := s.Update(t.Context(), func(tx *state.Tx) error { return notes.Put(tx, "", &note{}) }); err == nil {
		t.Error("a document without id is stored")
	}
	update(func(tx *state.Tx) error { return notes.Delete(tx, "c") })
	want := [][]state.DocumentID{{{Table: "settings", ID: "a"}}, {{Table: "settings", ID: "b/2"}, {Table: "settings", ID: "b/1"}, {Table: "settings", ID: "c"}}, {{Table: "settings", ID: "c"}}}
	for _, docs := range want {
		set, err := sub.Next(t.Context())
		if err != nil || !slices.Equal(set.Documents, docs) {
			t.Errorf("change set %v, %v, want %v", set.Documents, err, docs)
		}
	}
	check := func(s *state.Store) {
		t.Helper()
		err := s.View(func(tx *state.ReadTx) error {
			all := maps.Collect(notes.All(tx))
			if n := notes.Len(tx); n != 3 || len(all) != 3 || all["a"].Text != "one" || all["b/1"].Text != "b/1" {
				t.Errorf("%d documents: %v", n, all)
			}
			var ids []string
			for id := range notes.Prefix(tx, "b/") {
				ids = append(ids, id)
			}
			for id := range notes.After(tx, "b/1") {
				ids = append(ids, id)
			}
			if got := strings.Join(ids, " "); got != "b/1 b/2 b/2" {
				t.Errorf("by prefix and after: %s", got)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	check(s)
	check(storetest.OpenOn(t, j.Reopen()))
}

func TestStoredDocumentsAreReadIntoTheirType(t *testing.T) {
	at := time.Date(2024, 1, 2, 3, 4, 5, 0, time.UTC)
	d, err := state.LoadDocument("settings", "a", at, []byte(`{"v":1,"text":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := d.Value.(*note); !ok || n.Text != "x" || !d.UpdatedAt.Equal(at) {
		t.Errorf("%+v", d)
	}
	if doc, err := d.Encode("settings"); err != nil || doc != `{"v":1,"text":"x"}` {
		t.Errorf("%s, %v", doc, err)
	}
	// Nobody has declared webhooks here: they are kept as they are.
	raw, err := state.LoadDocument("webhooks", "a", at, []byte(`{"v":9,"text":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	if doc, err := raw.Encode("webhooks"); err != nil || doc != `{"v":9,"text":"x"}` {
		t.Errorf("%s, %v", doc, err)
	}
	if _, err := state.LoadDocument("settings", "a", at, []byte(`{"v":9}`)); err == nil {
		t.Error("a newer document is taken")
	}
}

func TestACollectionIsDeclaredOnceAndKnown(t *testing.T) {
	for _, name := range []state.Table{"settings", "no_such_table", state.TableVMs} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s can be declared", name)
				}
			}()
			state.NewCollection[note](name)
		}()
	}
}
