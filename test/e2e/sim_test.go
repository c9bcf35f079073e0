package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

// TestCycleSim creates and destroys environments without machines, many more
// than TestCycleMachines can.
func TestCycleSim(t *testing.T) {
	d := dev(t, bins.fuse, t.TempDir(), nil, "--driver", "sim")
	cycle := func(i int) {
		task := fmt.Sprintf("c%d", i)
		if err := d.create(task); err != nil {
			t.Fatal(err)
		}
		if a, err := d.http(http.MethodDelete, "/v1/environments/fuse-"+task, ""); err != nil || a.status != http.StatusNoContent {
			t.Fatalf("destroy %d: %v %d %s", i, err, a.status, a.raw)
		}
	}
	for i := range 20 {
		cycle(i)
	}
	fds, goroutines := d.fds(), d.goroutines()
	for i := range testkit.Count(1000, 10000) {
		cycle(1000 + i)
	}
	testkit.Eventually(t, time.Minute, "descriptors and goroutines are as before", func() bool {
		return d.fds() <= fds && d.goroutines() <= goroutines
	})
	if left := hostVMs(t, d.dir); len(left) != 0 {
		t.Errorf("left on the host: %v", left)
	}
	checkAllocated(t, d, 0)
}

// TestCreateDuringSlowListing creates environments while a listing that was
// made before them is held up for 5 s: they are not judged by it.
func TestCreateDuringSlowListing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	held := filepath.Join(dir, "held")
	d := dev(t, bins.failing, dir, []string{"FUSE_FAILPOINTS=hostd.list.answer@1=pause(" + held + ")"},
		"--driver", "sim", "--reconcile-interval", "18s")
	d.must("create", "--task-id", "before")
	testkit.Eventually(t, 2*time.Minute, "a listing is held up", func() bool {
		_, err := os.Stat(held)
		return err == nil
	})
	begin := time.Now()
	const n = 20
	for i := range n {
		if err := d.create(fmt.Sprintf("S.low_%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	// The listing takes 5 s, in which they are used.
	for i := 0; time.Since(begin) < 5*time.Second; i++ {
		d.must("exec", fmt.Sprintf("fuse-S.low_%d", i%n), "--", "echo", "on")
	}
	cycles := d.metric("orchestrator_reconcile_cycles_total")
	if err := os.Remove(held); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 3*time.Minute, "the cycle of that listing and a whole one after it are over", func() bool {
		return d.metric("orchestrator_reconcile_cycles_total") >= cycles+2
	})
	if ids := d.ids(); len(ids) != n+1 {
		t.Errorf("%d of %d environments are left: %v", len(ids), n+1, ids)
	}
}

// TestSecondServer starts a second server on the same data: it is refused by
// name and touches nothing.
func TestSecondServer(t *testing.T) {
	dir := t.TempDir()
	d := dev(t, bins.fuse, dir, nil, "--driver", "sim")
	d.must("create", "--task-id", "one")
	second := start(t, bins.fuse, dir, nil, "dev", "--driver", "sim", "--data-dir", dir, "--listen", "127.0.0.1:0")
	select {
	case <-second.done:
	case <-time.After(2 * time.Minute):
		t.Fatal("the second fuse dev serves")
	}
	if code := second.cmd.ProcessState.ExitCode(); code == 0 || !strings.Contains(second.out.String(), "in use") {
		t.Errorf("the second fuse dev exits with %d: %s", code, second.out)
	}
	// A server in the same directory waits for it.
	third := start(t, bins.fuse, dir, nil, "server", "--data-dir", dir, "--listen", "127.0.0.1:0", "--auth-token", "0123456789abcdef0123")
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if line, ok := third.out.line(ctx, "standing by at "); !ok || !strings.Contains(line, fmt.Sprintf("pid %d,", d.cmd.Process.Pid)) {
		t.Errorf("it does not name the holder: %q %s", line, third.out)
	}
	if got := d.must("exec", "fuse-one", "--", "echo", "on"); got != "on\n" {
		t.Errorf("the first one says %q", got)
	}
	d.stop()
	if _, ok := third.out.line(ctx, "serving "); !ok {
		t.Errorf("it does not take over: %s", third.out)
	}
}

// TestStopIsQuick stops a server that has an open event stream.
func TestStopIsQuick(t *testing.T) {
	dir := t.TempDir()
	// A machine that has other things to do may be late once, not each time.
	took := time.Hour
	for try := 0; try < 3 && took > 5*time.Second; try++ {
		d := dev(t, bins.fuse, dir, nil, "--driver", "sim")
		task := fmt.Sprint("watched-", try)
		d.must("create", "--task-id", task)
		watcher := start(t, bins.fuse, dir, nil, "events", "fuse-"+task, "--url", d.url, "--token-file", filepath.Join(dir, "token"))
		testkit.Eventually(t, time.Minute, "the stream is open", func() bool { return strings.Contains(watcher.out.String(), "running") })
		took = d.stop()
	}
	if took > 5*time.Second {
		t.Errorf("with an open event stream the stop takes %v", took)
	}
}

// TestFilesArePrivate looks at what the data directory holds.
func TestFilesArePrivate(t *testing.T) {
	d := dev(t, bins.fuse, t.TempDir(), nil, "--driver", "sim")
	const secret = "a-very-secret-value-4711"
	d.must("create", "--task-id", "s", "--secret", "K="+secret)
	for _, name := range []string{"token", "key", "hostd-token", "fuse.log"} {
		info, err := os.Stat(filepath.Join(d.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %04o", name, info.Mode().Perm())
		}
	}
	for _, pattern := range []string{"*.log", "fuse.db*"} {
		files, err := filepath.Glob(filepath.Join(d.dir, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v %v", pattern, files, err)
		}
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for what, s := range map[string]string{"secret": secret, "API token": d.token()} {
				if strings.Contains(string(raw), s) {
					t.Errorf("%s holds the %s in clear", filepath.Base(f), what)
				}
			}
		}
	}
}
