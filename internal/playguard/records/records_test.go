package records_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
)

func row(id model.PlaygroundID, desired, applied string) records.Playground {
	project, err := model.NewProject("shop", id)
	if err != nil {
		panic(err)
	}
	return records.Playground{Name: "shop", Owner: "ann", Playground: model.Playground{
		ID: id, Marquee: "m", Project: project, State: model.StateRunning, Intent: model.IntentUp, Desired: desired, Applied: applied,
	}}
}

// Of a playground's definitions the wanted and the applied one are kept, and
// what is kept of one playground never goes with another.
func TestVersions(t *testing.T) {
	store, sealer := storetest.OpenSealed(t)
	put := func(p records.Playground, digests ...string) {
		t.Helper()
		if _, err := store.Update(t.Context(), func(tx *state.Tx) error {
			for _, d := range digests {
				key, e, err := records.SealVersion(sealer, p.ID, records.Version{Digest: d, Compose: []byte("secret " + d)})
				if err != nil {
					return err
				}
				if err := records.Entries.Put(tx, key, &e); err != nil {
					return err
				}
			}
			return records.PutPlayground(tx, p)
		}); err != nil {
			t.Fatal(err)
		}
	}
	has := func(id model.PlaygroundID, digest string) bool {
		t.Helper()
		found := false
		if err := store.View(func(tx *state.ReadTx) error {
			v, err := records.OpenVersion(tx, sealer, id, digest)
			if found = err == nil; found && string(v.Compose) != "secret "+digest {
				t.Errorf("%s of %s reads %q", digest, id, v.Compose)
			}
			if err != nil && !errors.Is(err, records.ErrMissing) {
				return err
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return found
	}
	put(row("p1", "d1", "d1"), "d1")
	put(row("p10", "d1", "d1"), "d1")
	put(row("p1", "d2", "d1"), "d2")
	if !has("p1", "d1") || !has("p1", "d2") {
		t.Error("a rollout has lost a definition")
	}
	put(row("p1", "d2", "d2"))
	if has("p1", "d1") || !has("p1", "d2") || !has("p10", "d1") {
		t.Error("after the rollout the old one is to go, and only that")
	}
	if _, err := store.Update(t.Context(), func(tx *state.Tx) error { return records.DeletePlayground(tx, "p1") }); err != nil {
		t.Fatal(err)
	}
	if has("p1", "d2") || !has("p10", "d1") {
		t.Error("a playground goes with what is kept of it, and alone")
	}
}

// Ended operations are kept in number; one without an end always is.
func TestOperations(t *testing.T) {
	store, _ := storetest.OpenSealed(t)
	for i := range records.MaxOperations + 20 {
		op := records.Operation{ID: fmt.Sprintf("op%03d", i), Playground: "p1", StartedAt: time.Now(), EndedAt: time.Now()}
		if i == 3 {
			op.EndedAt = time.Time{}
		}
		if _, err := store.Update(t.Context(), func(tx *state.Tx) error { return records.PutOperation(tx, op) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.View(func(tx *state.ReadTx) error {
		list := records.Operations(tx, "p1")
		if len(list) != records.MaxOperations+1 || list[0].ID != "op003" || list[len(list)-1].ID != "op049" {
			t.Errorf("%d are kept, from %s to %s", len(list), list[0].ID, list[len(list)-1].ID)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestInstallation(t *testing.T) {
	if got := records.Installation("01JDYQ3ZK8M0R7A5E2X9T4V6BC"); got != "01jdyq3zk8m0r7a5e2x9t4v6bc" {
		t.Errorf("%s", got)
	}
	a, b := records.Installation("my fleet"), records.Installation("my-fleet")
	if !a.Valid() || !b.Valid() || a == b {
		t.Errorf("%q and %q", a, b)
	}
}

// The revision of a row is that of the commit that wrote it: what a look is
// compared with.
func TestRevision(t *testing.T) {
	store, _ := storetest.OpenSealed(t)
	for range 3 {
		done, err := store.Update(t.Context(), func(tx *state.Tx) error { return records.PutPlayground(tx, row("p1", "d", "d")) })
		if err != nil {
			t.Fatal(err)
		}
		_ = store.View(func(tx *state.ReadTx) error {
			if p, _ := records.Playgrounds.Get(tx, "p1"); p.Revision != done.Revision {
				t.Errorf("revision %d of commit %d", p.Revision, done.Revision)
			}
			return nil
		})
	}
}
