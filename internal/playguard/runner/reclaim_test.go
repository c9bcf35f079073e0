package runner_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// A checkout that is half gone is no work: a reclaim that is cut while it removes
// one that was clean would be parked for ever.
func TestWhatAReclaimLeavesIsNoWork(t *testing.T) {
	t.Parallel()
	m := newMarquee(t)
	if err := m.host.Enroll(t.Context(), m.conn); err != nil {
		t.Fatal(err)
	}
	p := m.play("p1", "web")
	m.ok(p, 1, "op1", decide.Files{})
	checkout := filepath.Join(m.host.Layout.Root(), "playgrounds", p.project.String(), "props", "api")
	if err := os.MkdirAll(filepath.Join(checkout, "stays"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("sh", "-ec", `git init -q .; git config user.email a@b; git config user.name n; echo a >f; echo b >stays/f
		git add .; git commit -qm x; git clone -q --bare . "$D/r"; git remote add origin "$D/r"; git fetch -q`)
	c.Dir, c.Env = checkout, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "D="+t.TempDir())
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dirt := func() (observe.Dirt, string) { return m.look().Project(p.project).Dirt() }
	if d, why := dirt(); d != observe.Clean {
		t.Fatalf("%v %s", d, why)
	}
	// What is a mount is not removed: the reclaim ends before all is gone.
	stays := filepath.Join(checkout, "stays")
	if err := unix.Mount(stays, stays, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	mounted := []string{stays}
	unmount := func() {
		for _, at := range mounted {
			_ = unix.Unmount(at, unix.MNT_DETACH) // it is there under one of its names
		}
	}
	t.Cleanup(unmount)
	if pr := m.run(p, 1, "op2", decide.Reclaim{}); pr.Status != decide.ExitLeft {
		t.Fatalf("%+v", pr)
	}
	if d, why := dirt(); d != observe.Clean {
		t.Errorf("what is left of a clean checkout is %v: %s", d, why)
	}
	left, err := filepath.Glob(filepath.Join(m.host.Layout.Root(), "playgrounds", p.project.String(), ".gone-*", "api", "stays"))
	if err != nil {
		t.Fatal(err)
	}
	mounted = append(mounted, left...)
	unmount()
	m.ok(p, 1, "op3", decide.Reclaim{})
	if _, err := os.Stat(filepath.Dir(filepath.Dir(checkout))); !os.IsNotExist(err) {
		t.Errorf("its directory is there: %v", err)
	}
}
