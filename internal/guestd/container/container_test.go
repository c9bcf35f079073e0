package container

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/process"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/services"
	"github.com/fusevm/fuse/internal/testkit"
)

// The tests' own program is a service's first process, as the agent's is.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == Verb {
		os.Exit(Main(os.Args[2:]))
	}
	testkit.Main(m)
}

// rig is a machine with one image of busybox for services.
type rig struct {
	*Runtime
	runner *process.Runner
}

func newRig(t *testing.T) rig {
	t.Helper()
	dir := t.TempDir()
	// An overlay cannot lie on another one, which the tests' disk may be.
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	root := filepath.Join(dir, "image-disk")
	for _, d := range []string{"bin", "etc", "proc", "sys", "dev", "srv"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"etc/passwd": "root:x:0:0::/root:/bin/sh\napp:x:77:78::/srv:/bin/sh\n", "etc/group": "app:x:78:\n", "etc/name": "image"} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "bin/busybox"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("busybox", filepath.Join(root, "bin/sh")); err != nil {
		t.Fatal(err)
	}
	// A link in the place of a directory that is mounted leads nowhere.
	if err := os.Remove(filepath.Join(root, "sys")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, filepath.Join(root, "sys")); err != nil {
		t.Fatal(err)
	}
	rt := newRuntime(Config{
		Images: []guestwire.BootServiceImage{{Name: "box:1@sha256:12", Serial: "disk", BootImage: guestwire.BootImage{
			Env: map[string]string{"FROM": "image", "PATH": "/bin"}, Workdir: "/srv", User: "app", Entrypoint: []string{"/bin/busybox"}, Cmd: []string{"id"},
		}}},
		Mounts: dir, Data: filepath.Join(dir, "data"),
	})
	rt.mounted["disk"] = true
	runner, err := process.NewRunner(process.Config{Reaper: process.NewReaper()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(runner.Close)
	return rig{rt, runner}
}

// service runs one to its end and returns what it printed.
func (r rig) service(t *testing.T, s services.Service, env map[string]string) (int, string) {
	t.Helper()
	c, err := r.Contain(t.Context(), s, env, []string{"db", "web"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	status, err := r.runner.Run(t.Context(), c.Command, process.IO{Stdout: &out, Stderr: &out, Namespaces: c.Namespaces}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return status.ExitCode, out.String()
}

func sh(script string) services.Service {
	return services.Service{Name: "db", Image: "box:1", User: "root", Command: []string{"sh", "-c", script}}
}

func TestAServiceLivesInItsImage(t *testing.T) {
	r := newRig(t)
	if code, out := r.service(t, services.Service{Name: "db", Image: "box:1"}, nil); code != 0 || !strings.Contains(out, "uid=77(app) gid=78(app)") {
		t.Errorf("the image's own program as its own user: %d %q", code, out)
	}
	for script, want := range map[string]string{
		"echo $FROM $MINE; pwd":                                  "image mine\n/srv\n",
		"busybox cat /etc/name; busybox hostname":                "imagedb\n",
		"busybox grep -c 'db web' /etc/hosts":                    "1\n",
		"busybox ls /dev/null /dev/ptmx /dev/stdout":             "/dev/null\n/dev/ptmx\n/dev/stdout\n",
		"busybox ls -d /proc/[0-9]* | busybox head -n1":          "/proc/1\n",
		"busybox mount -t tmpfs x /srv 2>/dev/null || echo no":   "no\n",
		"busybox mknod /srv/d b 8 0 2>/dev/null || echo no":      "no\n",
		"echo 1 2>/dev/null >/proc/sys/vm/swappiness || echo no": "no\n",
		"busybox touch /sys/x 2>/dev/null || echo no":            "no\n",
		"busybox ls /image-disk 2>/dev/null || echo no":          "no\n",
		"busybox kill -9 1; echo survives":                       "survives\n",
	} {
		if code, out := r.service(t, sh(script), map[string]string{"MINE": "mine"}); code != 0 || out != want {
			t.Errorf("%s: %d %q, want %q", script, code, out, want)
		}
	}
	for name, s := range map[string]struct {
		s    services.Service
		code int
		says string
	}{
		"missing":   {services.Service{Name: "db", Image: "box:1", Command: []string{"nothing"}}, 127, "cannot run nothing"},
		"user":      {services.Service{Name: "db", Image: "box:1", User: "nobody", Command: []string{"sh"}}, 126, "/etc/passwd"},
		"exit code": {sh("exit 7"), 7, ""},
		"signal":    {sh("busybox kill -TERM $$"), 143, ""},
	} {
		if code, out := r.service(t, s.s, nil); code != s.code || !strings.Contains(out, s.says) {
			t.Errorf("%s: %d %q", name, code, out)
		}
	}
	made := sh("pwd")
	made.Workdir = "/new/place"
	if code, out := r.service(t, made, nil); code != 0 || out != "/new/place\n" {
		t.Errorf("a directory of its own: %d %q", code, out)
	}
}

// What a service writes is its own, and there when it starts again; the image
// stays as it is.
func TestWhatAServiceWritesStays(t *testing.T) {
	r := newRig(t)
	r.service(t, sh("echo mine > /etc/name; echo x > /srv/data"), nil)
	if _, out := r.service(t, sh("busybox cat /etc/name /srv/data"), nil); out != "mine\nx\n" {
		t.Errorf("after a restart: %q", out)
	}
	other := sh("busybox cat /etc/name; busybox ls /srv")
	other.Name = "web"
	if _, out := r.service(t, other, nil); out != "image" {
		t.Errorf("another service of the image sees %q", out)
	}
	if data, err := os.ReadFile(filepath.Join(r.cfg.Mounts, "image-disk/etc/name")); err != nil || string(data) != "image" {
		t.Errorf("the image has %q, %v", data, err)
	}
}

func TestSignalsAndProbesReachAService(t *testing.T) {
	r := newRig(t)
	c, err := r.Contain(t.Context(), sh(`trap 'echo told; exit 3' TERM; echo up > /srv/up; (busybox sleep 600 &); until busybox ps | busybox grep -q '[s]leep 600$'; do busybox sleep 0.02; done; echo ready; while :; do busybox sleep 0.02; done`), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, in := io.Pipe()
	handles := make(chan process.Handle, 1)
	var run sync.WaitGroup
	var status fleet.ExecStatus
	run.Go(func() {
		defer in.Close()
		status, err = r.runner.Run(context.WithoutCancel(t.Context()), c.Command, process.IO{Stdout: in, Stderr: in, Namespaces: c.Namespaces, Started: func(h process.Handle) { handles <- h }}, nil)
	})
	h := <-handles
	buf := make([]byte, 64)
	if n, _ := out.Read(buf); string(buf[:n]) != "ready\n" {
		t.Fatalf("said %q", buf[:n])
	}
	for _, p := range []struct {
		argv []string
		exit int
		says string
	}{
		{[]string{"sh", "-c", "busybox cat /srv/up; pwd"}, 0, "up\n/srv\n"},
		{[]string{"sh", "-c", "busybox ps | busybox grep -c '[s]leep 600$'"}, 0, "1\n"},
		{[]string{"missing"}, 127, "cannot run missing"},
		{[]string{"sh", "-c", "exit 5"}, 5, ""},
	} {
		var said bytes.Buffer
		st, err := r.runner.Run(t.Context(), c.Enter(h.PID(), p.argv), process.IO{Stdout: &said, Stderr: &said}, nil)
		if err != nil || st.ExitCode != p.exit || !strings.Contains(said.String(), p.says) {
			t.Errorf("%v: %+v %q %v", p.argv, st, said.String(), err)
		}
	}
	slow := c.Enter(h.PID(), []string{"sh", "-c", "busybox sleep 300"})
	slow.Timeout = 300 * time.Millisecond
	if st, err := r.runner.Run(t.Context(), slow, process.IO{}, nil); err != nil || !st.TimedOut {
		t.Errorf("a probe without end: %+v %v", st, err)
	}
	if err := h.Signal(syscall.SIGTERM, false); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(out)
	run.Wait()
	if err != nil || status.ExitCode != 3 || string(rest) != "told\n" {
		t.Errorf("%+v %q %v", status, rest, err)
	}
}

func TestWhatCannotBeContained(t *testing.T) {
	r := newRuntime(Config{Images: []guestwire.BootServiceImage{{Name: "empty", Serial: "e"}}, Mounts: t.TempDir()})
	for image, says := range map[string]string{"other": "made without the image other", "empty": "no command"} {
		if _, err := r.Contain(t.Context(), services.Service{Name: "a", Image: image}, nil, nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", image, err)
		}
	}
}
