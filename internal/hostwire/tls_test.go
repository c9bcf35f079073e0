package hostwire_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fusevm/fuse/internal/hostwire"
)

func TestCertificateIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	load := func() string {
		t.Helper()
		cert, err := hostwire.LoadOrCreateCert(dir)
		if err != nil {
			t.Fatal(err)
		}
		return hostwire.Fingerprint(cert)
	}
	first := load()
	if again := load(); again != first || len(first) != 64 {
		t.Errorf("the certificate changed from %s to %s", first, again)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info, err)
		}
	}
	// A first start that came no further than the key is finished.
	if err := os.Remove(filepath.Join(dir, "cert.pem")); err != nil {
		t.Fatal(err)
	}
	if next := load(); next == first || load() != next {
		t.Errorf("the certificate after a start that was cut short: %s", next)
	}
}
