package rekey_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fusevm/fuse/internal/rekey"
	"github.com/fusevm/fuse/internal/secrets"
)

// A rekey of a data directory that is interrupted goes on with the same next
// key; once it is done the key before is kept under its id.
func TestTheNextKey(t *testing.T) {
	dir := t.TempDir()
	old, err := secrets.LoadOrCreateKey(filepath.Join(dir, rekey.KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := secrets.NewSealer(old).Seal("k", "i", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, err := rekey.NextKey(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	again, finish, err := rekey.NextKey(dir, nil)
	if err != nil || again.KeyID() != first.KeyID() || first.KeyID() == old.ID() {
		t.Fatalf("keys %s and %s, %v", first.KeyID(), again.KeyID(), err)
	}
	if plain, err := again.Open("k", "i", sealed); err != nil || string(plain) != "x" {
		t.Errorf("what the old key sealed: %q, %v", plain, err)
	}
	// As if it had been killed after keeping the key and before the rename.
	if err := os.Link(filepath.Join(dir, rekey.KeyFile), filepath.Join(dir, "key.old-"+old.ID())); err != nil {
		t.Fatal(err)
	}
	kept, err := finish()
	if err != nil || kept != filepath.Join(dir, "key.old-"+old.ID()) {
		t.Fatalf("kept %s, %v", kept, err)
	}
	now, err := secrets.LoadOrCreateKey(filepath.Join(dir, rekey.KeyFile))
	if err != nil || now.ID() != first.KeyID() {
		t.Errorf("the key is %v, %v", now, err)
	}
	if k, err := secrets.LoadOrCreateKey(kept); err != nil || k != old {
		t.Errorf("the kept key is %v, %v", k, err)
	}
	if _, err := os.Stat(filepath.Join(dir, rekey.NextKeyFile)); !os.IsNotExist(err) {
		t.Errorf("the next key is still there: %v", err)
	}
}
