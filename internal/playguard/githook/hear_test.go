package githook

import (
	"fmt"
	"slices"
	"testing"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A push is news for the playgrounds that are not at its commit yet, however often
// and under whatever ids it is told of.
func TestHear(t *testing.T) {
	store, sealer := storetest.OpenSealed(t)
	var checked []string
	s := &Service{Store: store, Sealer: sealer, Check: func(rows ...records.Playground) {
		for _, p := range rows {
			checked = append(checked, p.Name)
		}
	}}
	const repository, before = "https://git.example.org/ann/shop", "1111111111111111111111111111111111111111"
	const now, later = "2222222222222222222222222222222222222222", "3333333333333333333333333333333333333333"
	put := func(name, owner, branch, head, commit string, intent model.Intent) {
		t.Helper()
		if _, err := store.Update(t.Context(), func(tx *state.Tx) error {
			return records.PutPlayground(tx, records.Playground{
				Name: name, Owner: owner, Source: records.Source{Repository: repository + ".git", Branch: branch, Head: head, Commit: commit},
				Playground: model.Playground{ID: model.PlaygroundID(name), Marquee: "m1", Intent: intent},
			})
		}); err != nil {
			t.Fatal(err)
		}
	}
	put("shop", "ann", "main", before, before, model.IntentUp)
	put("bobs", "bob", "main", before, before, model.IntentUp)
	put("other", "ann", "dev", before, before, model.IntentUp)
	put("off", "ann", "main", before, before, model.IntentStopped)
	h, secret, err := s.Add(t.Context(), "ann", repository, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, delivery, commit string
		at                     func()
		kind                   string
		want                   []string
	}{
		{what: "a push", delivery: "d1", commit: now, kind: "push", want: []string{"shop"}},
		{what: "the same message again", delivery: "d1", commit: now, kind: "repeated"},
		{what: "the same commit under another id, while it is fetched", delivery: "d2", commit: now, kind: "push", want: []string{"shop"}},
		{
			what: "the same commit under another id, which is followed", delivery: "d3", commit: now, kind: "push",
			at: func() { put("shop", "ann", "main", now, now, model.IntentUp) },
		},
		{
			what: "the same commit, fetched and not yet read", delivery: "d4", commit: now, kind: "push", want: []string{"shop"},
			at: func() { put("shop", "ann", "main", now, before, model.IntentUp) },
		},
		{what: "the next commit", delivery: "d5", commit: later, kind: "push", want: []string{"shop"}},
	} {
		checked = nil
		if c.at != nil {
			c.at()
		}
		body := fmt.Sprintf(`{"ref":"refs/heads/main","after":%q}`, c.commit)
		p, n, err := s.Hear(t.Context(), h.ID, head("X-GitHub-Event", "push", "X-GitHub-Delivery", c.delivery, "X-Hub-Signature-256", "sha256="+sum(secret, body)), []byte(body))
		if err != nil || p.Kind != c.kind || n != len(c.want) || !slices.Equal(checked, c.want) {
			t.Errorf("%s: %s, %d playgrounds, looked at %v, want %v: %v", c.what, p.Kind, n, checked, c.want, err)
		}
	}
}
