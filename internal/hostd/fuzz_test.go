package hostd

import (
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/fusevm/fuse/internal/hostd/sim"
)

// FuzzRegistry opens a registry whose log says anything at all, in lines that
// carry the right checksum.
func FuzzRegistry(f *testing.F) {
	f.Add(`{"owner":{"registry_id":"r","fleet_id":"f","op_id":"o","vm":{"id":"v","uid":"u","slot":1}}}`, `{"ended":{"uid":"u"}}`)
	f.Add(`{"mark":{"fleet_id":"f","term":-1}}`, `{"answer":{"uid":"u","verb":"create"}}`)
	f.Add(`{"exit":{"uid":"u"}}`, `{"condemned":"u"}`)
	f.Add(`{"owner":{"fleet_id":"f","vm":{"id":"../v","uid":"../u","slot":-1}}}`, `[]`)
	f.Add(`{"owner":{"fleet_id":"f","vm":{"id":"v","uid":"u","slot":1000000000000}}}`, ``)
	f.Fuzz(func(t *testing.T, first, second string) {
		dir := t.TempDir()
		if _, err := RegistryID(dir); err != nil {
			t.Fatal(err)
		}
		var log []byte
		for _, doc := range []string{first, second, first} {
			log = fmt.Appendf(log, "%08x %s\n", crc32.ChecksumIEEE([]byte(doc)), doc)
		}
		if err := os.WriteFile(filepath.Join(dir, "registry.log"), log, 0o600); err != nil {
			t.Fatal(err)
		}
		drv, err := sim.New(sim.Options{})
		if err != nil {
			t.Fatal(err)
		}
		h, err := New(Config{Dir: dir, Driver: drv, Token: "a-token-of-16-bytes"})
		if err != nil {
			t.Fatalf("a log that says anything: %v", err)
		}
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		for _, l := range h.core.reg.lives {
			if filepath.Dir(l.owner.VM.Dir) != filepath.Join(dir, "vms") {
				t.Errorf("%q is outside the data directory", l.owner.VM.Dir)
			}
		}
	})
}
