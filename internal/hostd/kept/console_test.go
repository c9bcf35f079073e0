package kept

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
)

func TestTheConsoleIsReadAtTheHost(t *testing.T) {
	dir := t.TempDir()
	g := New(nil, dir) // the guest is not asked
	srv := httptest.NewServer(g)
	defer srv.Close()
	read := func(most int64) *guestwirev1.ReadConsoleResponse {
		t.Helper()
		res, err := guestwire.NewSurface(srv.Client(), srv.URL).Console.ReadConsole(t.Context(), connect.NewRequest(&guestwirev1.ReadConsoleRequest{MaxBytes: most}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg
	}
	if got := read(0); len(got.GetOutput()) > 0 || got.GetCut() {
		t.Errorf("before it wrote: %v", got)
	}
	at := time.UnixMilli(1234)
	if err := g.store(record{BootID: "b", Boots: []Boot{{at, CausePanic}}}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, Console), []byte("\x00\x00one\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := read(0)
	if string(got.GetOutput()) != "one\ntwo\n" || !got.GetCut() || len(got.GetReboots()) != 1 || got.GetReboots()[0].GetCause() != CausePanic || got.GetReboots()[0].GetAtUnixMs() != 1234 {
		t.Errorf("%v", got)
	}
	if got := read(4); string(got.GetOutput()) != "two\n" || !got.GetCut() {
		t.Errorf("%v", got)
	}
	if err := os.WriteFile(filepath.Join(dir, Console), []byte(strings.Repeat("x", 2<<20)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := read(1 << 40); len(got.GetOutput()) != maxConsole {
		t.Errorf("%d bytes", len(got.GetOutput()))
	}
}
