// Package dockertest runs a real dockerd for tests: with its own data, socket
// and process file, in a network namespace of its own, and an image that needs
// no registry. Containers can be joined by networks and reach nothing else.
package dockertest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/testkit"
)

// Image is the name of the image that a Daemon holds: busybox at /bin/busybox,
// with a shell.
const Image = "fuse-test/busybox:1"

// Daemon is one dockerd.
type Daemon struct {
	Dir     string
	Host    string // for DOCKER_HOST
	PIDFile string

	data   string
	key    string // that its id is made of; empty: the machine's
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start runs a dockerd until the test ends.
func Start(t testing.TB) *Daemon {
	t.Helper()
	return start(t, 0)
}

// StartSmall runs a dockerd whose data has only so much room.
func StartSmall(t testing.TB, bytes int64) *Daemon {
	t.Helper()
	return start(t, bytes)
}

func start(t testing.TB, room int64) *Daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "fuse-docker") // a short path: sockets are in it
	if err != nil {
		t.Fatal(err)
	}
	d := &Daemon{Dir: dir, Host: "unix://" + filepath.Join(dir, "sock"), PIDFile: filepath.Join(dir, "pid"), data: filepath.Join(dir, "data")}
	t.Cleanup(func() {
		d.Stop(t)
		testkit.Eventually(t, patience, "the daemon's directory goes", func() bool { // who was killed may be on the way out
			d.unmount()
			return os.RemoveAll(dir) == nil
		})
	})
	if room > 0 {
		if err := os.Mkdir(d.data, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("tmpfs", d.data, "tmpfs", 0, fmt.Sprintf("size=%d", room)); err != nil {
			t.Fatal(err)
		}
	}
	d.Run(t)
	d.load(t)
	return d
}

// Data is the daemon's data root.
func (d *Daemon) Data() string { return d.data }

// UseData lets the next Run begin with another, empty data root, or with one
// that it had before.
func (d *Daemon) UseData(name string) { d.data = filepath.Join(d.Dir, name) }

// LoadImage imports the image, for a data root that is new.
func (d *Daemon) LoadImage(t testing.TB) {
	t.Helper()
	d.load(t)
}

// patience is how long a daemon may take to answer or to end on a machine of any load.
const patience = 3 * time.Minute

// starts is how often Run begins a daemon that gives up on its containerd, which
// has 15 s on a machine of any load. An init system starts it again, too.
const starts = 3

// Reinstall ends the daemon and starts one with another id over the same data, as
// an upgrade does that loses what lies in /etc/docker.
func (d *Daemon) Reinstall(t testing.TB) {
	t.Helper()
	d.Stop(t)
	d.key = filepath.Join(d.Dir, fmt.Sprintf("key-%d.json", time.Now().UnixNano()))
	if err := os.WriteFile(d.key+".config", fmt.Appendf(nil, `{"deprecated-key-path": %q}`, d.key), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Run(t)
}

// Run starts the daemon again after Kill or Stop.
func (d *Daemon) Run(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(d.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	for i := 1; ; i++ {
		from, err := log.Seek(0, io.SeekEnd)
		if err != nil {
			t.Fatal(err)
		}
		if d.run(t, log) {
			return
		}
		text, err := io.ReadAll(io.NewSectionReader(log, from, 1<<20))
		if err != nil {
			t.Fatal(err)
		}
		if i == starts || !bytes.Contains(text, []byte("timeout waiting for containerd to start")) {
			t.Fatalf("dockerd ended: %s", text)
		}
	}
}

// run starts the daemon once, and reports whether it answers; otherwise it ended.
func (d *Daemon) run(t testing.TB, log *os.File) bool {
	t.Helper()
	d.cmd = exec.CommandContext(context.Background(), "/usr/sbin/dockerd", "--data-root", d.data, "--exec-root", filepath.Join(d.Dir, "exec"),
		"--pidfile", d.PIDFile, "--host", d.Host, "--storage-driver", "vfs", "--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false")
	if d.key != "" {
		d.cmd.Args = append(d.cmd.Args, "--config-file", d.key+".config")
	}
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM, Cloneflags: syscall.CLONE_NEWNET}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.exited = make(chan struct{})
	cmd, exited := d.cmd, d.exited
	go func() {
		cmd.Wait() //nolint:errcheck // it is stopped or killed
		close(exited)
	}()
	deadline := time.Now().Add(patience)
	for {
		if _, err := d.Docker("info"); err == nil {
			return true
		}
		select {
		case <-exited:
			return false
		case <-time.After(100 * time.Millisecond): // each look is a process
		}
		if time.Now().After(deadline) {
			t.Fatal("dockerd does not answer")
		}
	}
}

// Docker runs the docker command against the daemon.
func (d *Daemon) Docker(args ...string) (string, error) {
	cmd := exec.CommandContext(context.Background(), "docker", args...)
	cmd.Env = append(os.Environ(), "DOCKER_HOST="+d.Host)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), err
}

// Kill ends the daemon as a crash does; its containers' processes are ended
// too, as a host that lost power would.
func (d *Daemon) Kill() {
	d.containers(syscall.SIGKILL)
	d.cmd.Process.Kill() //nolint:errcheck // it may be gone
	<-d.exited
	os.Remove(d.PIDFile)
	// The number may be another process's by now, and the next daemon would wait
	// for that one to be its containerd.
	os.Remove(filepath.Join(d.Dir, "exec", "containerd", "containerd.pid"))
}

// Reach lets the daemon, which is in a network of its own, reach an address of
// this machine's loopback by that same address, until the test ends.
func (d *Daemon) Reach(t testing.TB, address string) {
	t.Helper()
	l, err := d.listen(address)
	if err != nil {
		t.Fatal(err)
	}
	var open sync.WaitGroup
	open.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			open.Go(func() {
				defer in.Close()
				out, err := new(net.Dialer).DialContext(context.Background(), "tcp", address)
				if err != nil {
					return
				}
				defer out.Close()
				done := make(chan struct{})
				go func() {
					io.Copy(out, in) //nolint:errcheck // who asks sees it
					out.Close()
					close(done)
				}()
				io.Copy(in, out) //nolint:errcheck // as above
				in.Close()
				<-done
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		open.Wait()
	})
}

// listen listens in the network of the daemon, on a thread that goes there and comes
// back.
func (d *Daemon) listen(address string) (l net.Listener, err error) {
	pid := fmt.Sprint(d.cmd.Process.Pid)
	if out, err := exec.Command("nsenter", "-t", pid, "-n", "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil { //nolint:noctx // a moment
		return nil, fmt.Errorf("loopback of the daemon: %w: %s", err, out)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("the test's network: %w", err)
	}
	defer here.Close()
	there, err := os.Open("/proc/" + pid + "/ns/net")
	if err != nil {
		return nil, fmt.Errorf("the daemon's network: %w", err)
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("enter the daemon's network: %w", err)
	}
	l, err = net.Listen("tcp", address)
	if back := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); back != nil {
		panic(back) // what runs on this thread later would be in the wrong network
	}
	return l, err
}

// Freeze stops the daemon without ending it, Thaw lets it go on.
func (d *Daemon) Freeze() { d.cmd.Process.Signal(syscall.SIGSTOP) } //nolint:errcheck // it runs

// Thaw ends a Freeze.
func (d *Daemon) Thaw() { d.cmd.Process.Signal(syscall.SIGCONT) } //nolint:errcheck // it runs

// Stop ends the daemon in good order, and what it ran.
func (d *Daemon) Stop(t testing.TB) {
	t.Helper()
	d.Thaw()
	d.cmd.Process.Signal(syscall.SIGTERM) //nolint:errcheck // it may be gone
	select {
	case <-d.exited:
	case <-time.After(patience):
		t.Error("dockerd did not stop")
		d.Kill()
	}
	d.containers(syscall.SIGKILL)
}

// containers signals every process whose command line names our directory:
// the shims of our own daemon and its containerd.
func (d *Daemon) containers(sig syscall.Signal) {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, p := range dirs {
		line, err := os.ReadFile(filepath.Join(p, "cmdline"))
		var pid int
		if err != nil || !bytes.Contains(line, []byte(d.Dir+"/")) || d.cmd != nil && filepath.Base(p) == fmt.Sprint(d.cmd.Process.Pid) {
			continue
		}
		if _, err := fmt.Sscan(filepath.Base(p), &pid); err == nil && pid != os.Getpid() {
			for _, child := range children(pid) {
				syscall.Kill(child, sig) //nolint:errcheck // it may be gone
			}
			syscall.Kill(pid, sig) //nolint:errcheck // it may be gone
		}
	}
}

func children(pid int) []int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	var out []int
	for _, f := range strings.Fields(string(raw)) {
		var n int
		if _, err := fmt.Sscan(f, &n); err == nil {
			out = append(out, n)
		}
	}
	return out
}

func (d *Daemon) unmount() {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], d.Dir+"/") {
			syscall.Unmount(f[1], syscall.MNT_DETACH) //nolint:errcheck // the removal tells
		}
	}
}

// load imports the image.
func (d *Daemon) load(t testing.TB) {
	t.Helper()
	box, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	dirs := []string{"bin/", "tmp/", "etc/", "proc/", "sys/", "dev/"}
	for _, name := range dirs {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}))
	}
	err = errors.Join(err, w.WriteHeader(&tar.Header{Name: "bin/busybox", Mode: 0o755, Size: int64(len(box))}))
	_, werr := w.Write(box)
	err = errors.Join(err, werr)
	for _, name := range []string{"sh", "sleep", "true", "false", "cat", "echo", "kill", "touch", "ls", "rm"} {
		err = errors.Join(err, w.WriteHeader(&tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.Background(), "docker", "import", "-", Image)
	cmd.Env, cmd.Stdin = append(os.Environ(), "DOCKER_HOST="+d.Host), &buf
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("docker import: %v: %s", err, out)
	}
}
