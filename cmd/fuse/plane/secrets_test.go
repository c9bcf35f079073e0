package plane

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/rekey"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
)

const hexKeyA, hexKeyB = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

func keyID(t *testing.T, text string) string {
	t.Helper()
	k, err := secrets.ParseKey(text)
	if err != nil {
		t.Fatal(err)
	}
	return k.ID()
}

// Servers of one database must share a key, so none is made for one of them.
func TestADatabaseServerNeedsAKey(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	s := config.Server{DataDir: string(dir), Store: config.StorePostgres}
	_, err := OpenSealer(s)
	var fe *fleet.Error
	if !errors.As(err, &fe) || !strings.Contains(fe.Details[fleet.DetailRemedy], "TOKEN_ENCRYPTION_KEY") {
		t.Errorf("without a key: %v", err)
	}
	if exists(dir.Path(rekey.KeyFile)) {
		t.Error("a key was made")
	}
	s.NoEncryption = true
	if sealer, err := OpenSealer(s); err != nil || sealer.KeyID() != secrets.ClearKeyID {
		t.Errorf("insisting: %v", err)
	}
	s.NoEncryption, s.EncryptionKey = false, hexKeyA
	if sealer, err := OpenSealer(s); err != nil || sealer.KeyID() != keyID(t, hexKeyA) {
		t.Errorf("with one: %v", err)
	}
}

// A standby that could not read what the leader seals says so at its start.
func TestAStandbyNeedsTheLeadersKey(t *testing.T) {
	a, b := keyID(t, hexKeyA), keyID(t, hexKeyB)
	oldA, insecure := config.Server{EncryptionKey: hexKeyB, OldKeys: []string{hexKeyA}}, config.Server{NoEncryption: true}
	for _, test := range []struct {
		name   string
		server config.Server
		leader string
		ok     bool
	}{
		{"the same", config.Server{EncryptionKey: hexKeyA}, a, true},
		{"another", config.Server{EncryptionKey: hexKeyB}, a, false},
		{"its old one", oldA, a, true},
		{"clear", config.Server{EncryptionKey: hexKeyA}, secrets.ClearKeyID, false},
		{"both clear", insecure, secrets.ClearKeyID, true},
		{"clear here alone", insecure, b, false},
		{"a leader that does not say", config.Server{EncryptionKey: hexKeyA}, "", true},
	} {
		test.server.Store, test.server.DataDir = config.StorePostgres, t.TempDir()
		_, admit, err := StandbyKeys(test.server)
		if err != nil {
			t.Fatal(err)
		}
		err = admit(state.Candidate{Name: "leader", KeyID: test.leader})
		if (err == nil) != test.ok {
			t.Errorf("%s: %v", test.name, err)
		}
		var fe *fleet.Error
		if !test.ok && (!errors.As(err, &fe) || fe.Details[fleet.DetailRemedy] == "" || !strings.Contains(err.Error(), "leader")) {
			t.Errorf("%s: %v says not what to do", test.name, err)
		}
	}
	if _, _, err := StandbyKeys(config.Server{Store: config.StorePostgres, DataDir: t.TempDir()}); err == nil {
		t.Error("without a key it would wait to lead")
	}
	dir := datadir.Dir(t.TempDir())
	if id, admit, err := StandbyKeys(config.Server{Store: config.StoreSQLite, DataDir: string(dir)}); id != "" || admit != nil || err != nil ||
		exists(dir.Path(rekey.KeyFile)) {
		t.Errorf("a data directory is touched before it is owned: %q, %v", id, err)
	}
}

// A server that starts after an interrupted rekey has both keys, and seals with
// the one that it had.
func TestTheRingOfAServer(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	s := config.Server{DataDir: string(dir), Store: config.StoreSQLite}
	before, err := OpenSealer(s)
	if err != nil {
		t.Fatal(err)
	}
	next, _, err := rekey.NextKey(string(dir), nil)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := next.Seal("k", "i", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	between, err := OpenSealer(s)
	if err != nil || between.KeyID() != before.KeyID() || !between.Opens(sealed) || before.Opens(sealed) {
		t.Errorf("between: key %s, %v", between.KeyID(), err)
	}
	s.EncryptionKey, s.OldKeys = hexKeyA, []string{hexKeyB}
	old, err := OpenSealer(config.Server{DataDir: string(dir), EncryptionKey: hexKeyB})
	if err != nil {
		t.Fatal(err)
	}
	if sealed, err = old.Seal("k", "i", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if ring, err := OpenSealer(s); err != nil || ring.KeyID() != keyID(t, hexKeyA) || !ring.Opens(sealed) {
		t.Errorf("keys of the environment: %v", err)
	}
	if err := os.Chmod(dir.Path(rekey.NextKeyFile), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSealer(config.Server{DataDir: string(dir), Store: config.StoreSQLite}); err == nil {
		t.Error("a next key that others can read is taken")
	}
}

// Every kind of value that some service seals has a column, or a rekey would
// leave it under its old key.
func TestEverySealedKindHasAColumn(t *testing.T) {
	kinds := map[string]bool{}
	for _, c := range SealedColumns {
		kinds[c.Kind] = true
	}
	declared := regexp.MustCompile(`(?m)^\s*(?:const )?SealKind\w*\s*=\s*"(\w+)"`)
	found := 0
	err := filepath.WalkDir("../../../internal", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			if found++; !kinds[m[1]] {
				t.Errorf("%s: nothing seals %q anew; add it to SealedColumns", path, m[1])
			}
		}
		return err
	})
	if err != nil || found < len(kinds) {
		t.Errorf("%d kinds found, %d columns, %v", found, len(kinds), err)
	}
}
