package kept

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostwire"
)

var (
	errGone    = fleet.Errorf(fleet.CodeNotFound, "no such VM")
	errStopped = fleet.Errorf(fleet.CodeConflict, "%w: it has stopped", fleet.ErrVMNotRunning)
)

func surface(t *testing.T, h http.Handler) guestwire.Surface {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return guestwire.NewSurface(srv.Client(), srv.URL)
}

// vmOf makes a machine that has written text to its console.
func vmOf(t *testing.T, dir, uid, text string) driver.VM {
	t.Helper()
	vm := driver.VM{ID: "fuse-" + uid, UID: uid, Dir: filepath.Join(dir, "vms", uid)}
	if err := os.MkdirAll(vm.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(vm.Dir, Console), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return vm
}

func TestTheConsoleOutlivesItsMachine(t *testing.T) {
	dir := t.TempDir()
	c := NewConsoles(dir, slog.New(slog.DiscardHandler))
	vm := vmOf(t, dir, "u", "hello\nworld\n")
	if err := (keeper{dir: vm.Dir}).store(record{BootID: "b", Boots: []Boot{{time.UnixMilli(7), CausePanic}}}); err != nil {
		t.Fatal(err)
	}
	read := func(fleetID, vmID, uid string, why error, most int64) (*guestwirev1.ReadConsoleResponse, error) {
		t.Helper()
		res, err := surface(t, c.Left(fleetID, vmID, uid, why)).Console.ReadConsole(t.Context(), connect.NewRequest(&guestwirev1.ReadConsoleRequest{MaxBytes: most}))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	}
	holds := func(when, want string, cut bool, most int64, why error) {
		t.Helper()
		got, err := read("f", vm.ID, "u", why, most)
		if err != nil || string(got.GetOutput()) != want || got.GetCut() != cut || len(got.GetReboots()) != 1 || got.GetReboots()[0].GetCause() != CausePanic {
			t.Errorf("%s: %v, %v", when, got, err)
		}
	}
	holds("stopped", "hello\nworld\n", false, 0, errStopped)
	c.Keep("f", vm)
	if err := os.RemoveAll(vm.Dir); err != nil {
		t.Fatal(err)
	}
	c.Keep("f", vm) // a removal that is tried again takes nothing away
	holds("gone", "hello\nworld\n", false, 0, errGone)
	holds("being removed", "hello\nworld\n", false, 0, errStopped)
	holds("its end", "world\n", true, 6, errGone)
	c = NewConsoles(dir, slog.New(slog.DiscardHandler))
	holds("after a restart", "hello\nworld\n", false, 0, errGone)

	forbidden := fleet.Errorf(fleet.CodeForbidden, "uid u belongs to another fleet")
	for name, try := range map[string]struct {
		fleetID, vmID, uid string
		why                error
	}{
		"another fleet":  {"g", vm.ID, "u", errGone},
		"another id":     {"f", "fuse-v", "u", errGone},
		"another life":   {"f", vm.ID, "v", errGone},
		"a way out":      {"f", vm.ID, "../consoles/u", errGone},
		"refused before": {"f", vm.ID, "u", forbidden},
	} {
		got, err := read(try.fleetID, try.vmID, try.uid, try.why, 0)
		if err == nil || !hostwire.RefusedByHost(err) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if _, err := surface(t, c.Left("f", vm.ID, "u", errStopped)).Processes.ListProcesses(t.Context(), connect.NewRequest(&guestwirev1.ListProcessesRequest{})); !hostwire.RefusedByHost(err) {
		t.Errorf("another call: %v", err)
	}
}

func TestKeptConsolesAreBounded(t *testing.T) {
	dir := t.TempDir()
	c := NewConsoles(dir, slog.New(slog.DiscardHandler))
	count := func() (n int, bytes int64) {
		t.Helper()
		entries, err := os.ReadDir(c.path(""))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				t.Fatal(err)
			}
			bytes += info.Size()
		}
		return len(entries), bytes
	}
	c.maxBytes = 2 << 20
	big := strings.Repeat("x", 2<<20)
	for i := range 10 {
		name := fmt.Sprintf("big-%d", i)
		c.Keep("f", vmOf(t, dir, name, big))
		// The kernel's clock of files may stand still until the next one.
		before := time.Now().Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(c.path(name), before, before); err != nil {
			t.Fatal(err)
		}
	}
	if n, bytes := count(); n == 0 || n == 10 || bytes > c.maxBytes {
		t.Errorf("%d consoles of %d bytes are kept", n, bytes)
	}
	if _, err := os.Stat(c.path("big-9")); err != nil {
		t.Errorf("the newest is not kept: %v", err)
	}
	c.Prune(time.Now().Add(consolesAge + time.Minute))
	if n, _ := count(); n != 0 {
		t.Errorf("%d consoles are kept beyond their time", n)
	}
	c.maxCount = 8
	for i := range c.maxCount + 5 {
		if err := os.WriteFile(c.path(fmt.Sprintf("u-%d", i)), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.Prune(time.Now())
	if n, _ := count(); n != c.maxCount {
		t.Errorf("%d consoles are kept", n)
	}
	// Machines without a console leave nothing, and what cannot be kept holds up
	// nobody.
	vm := vmOf(t, dir, "quiet", "")
	if c.Keep("f", vm); exists(c.path("quiet")) {
		t.Error("an empty console is kept")
	}
	if err := os.RemoveAll(c.path("")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.path(""), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c.Keep("f", vmOf(t, dir, "full", "x"))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
