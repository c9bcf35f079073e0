package secrets_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/secrets"
)

func TestTheKeyFileIsMadeOnceAndKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	var wg sync.WaitGroup
	keys := make([]secrets.Key, 8)
	for i := range keys {
		wg.Go(func() {
			k, err := secrets.LoadOrCreateKey(path)
			if err != nil {
				t.Error(err)
			}
			keys[i] = k
		})
	}
	wg.Wait()
	for _, k := range keys {
		if k != keys[0] {
			t.Errorf("two keys: %s and %s", k, keys[0])
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("left in the directory: %v, %v", entries, err)
	}
	other, err := secrets.LoadOrCreateKey(path + "2")
	if err != nil || other == keys[0] {
		t.Errorf("another file has key %s, %v", other, err)
	}
}

func TestAKeyFileThatWillNotDoIsRefused(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := strings.Repeat("ab", 32)
	for path, want := range map[string]string{
		file("group", good, 0o640):                      "chmod 600",
		file("world", good, 0o604):                      "chmod 600",
		file("short", good[1:], 0o600):                  "64 hex digits",
		file("empty", "", 0o600):                        "64 hex digits",
		file("text", strings.Repeat("xy", 32), 0o600):   "64 hex digits",
		file("large", strings.Repeat("a", 4096), 0o600): "64 hex digits",
		dir:                                  "no regular file",
		filepath.Join(dir, "missing", "key"): "no such file",
	} {
		_, err := secrets.LoadOrCreateKey(path)
		if err == nil || !strings.Contains(err.Error()+details(err), want) || !strings.Contains(err.Error(), filepath.Base(path)) && want != "no such file" {
			t.Errorf("%s: %v", path, err)
		}
		if err != nil && strings.Contains(err.Error(), good[1:]) {
			t.Errorf("%s: the error holds the key", path)
		}
	}
}

func details(err error) (text string) {
	for ; err != nil; err = unwrap(err) {
		if e, ok := err.(*fleet.Error); ok { //nolint:errorlint // each level is looked at
			for _, v := range e.Details {
				text += v + "\n"
			}
		}
	}
	return text
}

func unwrap(err error) error {
	u, ok := err.(interface{ Unwrap() error })
	if !ok {
		return nil
	}
	return u.Unwrap()
}

func TestParseKey(t *testing.T) {
	text := strings.Repeat("0f", 32)
	k, err := secrets.ParseKey(" " + strings.ToUpper(text) + "\n")
	if err != nil || k.Hex() != text || len(k.ID()) != 16 {
		t.Errorf("key %q %q, %v", k.Hex(), k.ID(), err)
	}
	for _, bad := range []string{"", text[2:], text + "00", strings.Repeat("g", 64), text[:32] + " " + text[33:]} {
		if _, err := secrets.ParseKey(bad); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
