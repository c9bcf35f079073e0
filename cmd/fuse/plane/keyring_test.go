package plane

import (
	"os"
	"strings"
	"testing"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/internal/config"
)

// TestNoNewKeyForASealedState loses the key beside a database.
func TestNoNewKeyForASealedState(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	settings := config.Server{DataDir: string(dir), Store: config.StoreSQLite}
	if _, err := OpenSealer(settings); err != nil {
		t.Fatalf("first start: %v", err)
	}
	if err := os.WriteFile(dir.Path("fuse.db"), []byte("sealed"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSealer(settings); err != nil {
		t.Fatalf("second start: %v", err)
	}
	if err := os.Remove(dir.Path("key")); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSealer(settings); err == nil || !strings.Contains(err.Error(), dir.Path("key")) {
		t.Errorf("without the key: %v", err)
	}
	if _, err := os.Stat(dir.Path("key")); err == nil {
		t.Error("a new key was made")
	}
	settings.EncryptionKey = strings.Repeat("ab", 32)
	if _, err := OpenSealer(settings); err != nil {
		t.Errorf("with a key of one's own: %v", err)
	}
}
