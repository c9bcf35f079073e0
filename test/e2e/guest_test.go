package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/testkit"
)

// screen is a terminal of this machine with fuse on it.
type screen struct {
	t      *testing.T
	master *os.File
	tty    *os.File
	cmd    *exec.Cmd
	ended  chan error

	mu  sync.Mutex
	buf bytes.Buffer
}

// onTerminal runs fuse on a terminal of its own.
func (d *daemon) onTerminal(t *testing.T, rows, cols uint16, args ...string) *screen {
	t.Helper()
	cmd := exec.Command(bins.fuse, append([]string{"--url", d.url}, args...)...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+d.home, "HOME="+d.home, "TERM=xterm", "FUSE_TOKEN="+d.token())
	return onTerminal(t, rows, cols, cmd)
}

// onTerminal runs a program of this machine on a terminal of its own.
func onTerminal(t *testing.T, rows, cols uint16, cmd *exec.Cmd) *screen {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{t: t, master: os.NewFile(uintptr(fd), "ptmx"), tty: tty, ended: make(chan error, 1)}
	s.resize(rows, cols)
	before := modes(t, tty)
	s.cmd = cmd
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = tty, tty, tty
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		p := make([]byte, 32<<10)
		for {
			n, err := s.master.Read(p)
			s.mu.Lock()
			s.buf.Write(p[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	go func() { s.ended <- s.cmd.Wait() }()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it may have ended
		if after := modes(t, tty); after != before {
			t.Errorf("the terminal was left as %+v, not %+v", after, before)
		}
		_ = tty.Close()
		_ = s.master.Close()
		<-reading
	})
	return s
}

// modes are the settings that a program on a terminal has to put back.
func modes(t *testing.T, tty *os.File) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

func (s *screen) resize(rows, cols uint16) {
	s.t.Helper()
	if err := unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) types(text string) {
	s.t.Helper()
	if _, err := s.master.WriteString(text); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.ReplaceAll(s.buf.String(), lastWord, "")
}

// lastWord is written behind all that a program wrote, so that the end of it is
// seen.
const lastWord = "\x1e\x1e"

// drain waits until everything is on the screen that was written so far.
func (s *screen) drain() {
	s.t.Helper()
	if _, err := s.tty.WriteString(lastWord); err != nil {
		s.t.Fatal(err)
	}
	testkit.Eventually(s.t, time.Minute, "the screen has everything", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.HasSuffix(s.buf.String(), lastWord)
	})
}

func (s *screen) shows(text string) {
	s.t.Helper()
	end := time.Now().Add(2 * time.Minute)
	testkit.Eventually(s.t, 3*time.Minute, "the screen shows "+text, func() bool { return strings.Contains(s.text(), text) || time.Now().After(end) })
	if !strings.Contains(s.text(), text) {
		s.t.Fatalf("no %q on the screen: %q", text, s.text())
	}
}

func (s *screen) exits(code int) {
	s.t.Helper()
	select {
	case <-s.ended:
		s.drain()
		if got := s.cmd.ProcessState.ExitCode(); got != code {
			s.t.Errorf("fuse ended with %d, not %d; screen %q", got, code, s.text())
		}
	case <-time.After(2 * time.Minute):
		s.t.Fatalf("fuse goes on; screen %q", s.text())
	}
}

// TestGuestSurface does with a real machine what people do with theirs.
func TestGuestSurface(t *testing.T) {
	t.Parallel()
	before := hostObjects(t)
	at := testkit.Addr(t) // the same after a restart
	d := dev(t, bins.fuse, machineDir(t), nil, "--listen", at)
	d.must("create", "--task-id", "g", "--ram-mb", "256", "--storage-gb", strconv.Itoa(testkit.Count(1, 4)))
	const id = "fuse-g"
	t.Run("terminal", func(t *testing.T) { terminals(t, d, id) })
	t.Run("full screen", func(t *testing.T) { fullScreen(t, d, id) })
	t.Run("screens", func(t *testing.T) { screens(t, d, id) })
	t.Run("detach", func(t *testing.T) { detaches(t, d, id) })
	t.Run("server killed", func(t *testing.T) { outlivesTheServer(t, d, id) })
	t.Run("transfers", func(t *testing.T) { transfers(t, d, id) })
	t.Run("cuts", func(t *testing.T) { overCuts(t, d, id) })
	t.Run("slow reader", func(t *testing.T) { slowReader(t, d, id) })
	t.Run("reader gone", func(t *testing.T) { readerGone(t, d, id) })
	t.Run("paste", func(t *testing.T) { paste(t, d, id) })
	t.Run("refusals", func(t *testing.T) { refusals(t, d, id) })
	t.Run("memory hog", func(t *testing.T) { memoryHog(t, d, id) })
	t.Run("full disk", func(t *testing.T) { fullDisk(t, d, id) })
	t.Run("full root", func(t *testing.T) { fullRoot(t, d) })
	d.must("rm", id)
	d.stop()
	sameObjects(t, before)
}

// terminals holds a shell to what its user expects of the keys.
func terminals(t *testing.T, d *daemon, id string) {
	s := d.onTerminal(t, 31, 97, "shell", id)
	s.types("stty size; echo TERM=$TERM\n")
	s.shows("31 97\r\n")
	s.shows("TERM=xterm\r\n")
	s.types("sh -c 'trap \"stty size; exit 0\" WINCH; echo up-$((0+1)); while :; do sleep 0.1; done'\n")
	s.shows("up-1\r\n")
	s.resize(42, 111)
	s.shows("42 111\r\n")
	s.types("sh -c 'echo up-$((1+1)); exec sleep 600'\n")
	s.shows("up-2")
	s.types("\x03")
	s.types("echo int-$?\n")
	s.shows("int-130")
	s.types("sh -c 'echo up-$((2+2)); exec cat'\n")
	s.shows("up-4")
	s.types("typed\n")
	s.shows("typed\r\ntyped\r\n")
	s.types("\x04")
	s.types("echo eof-$?\n")
	s.shows("eof-0")
	s.types("sh -c 'echo up-$((1+2)); exec sleep 601'\n")
	s.shows("up-3")
	s.types("\x1a")
	s.shows("Stopped")
	// A shell with a job that it takes for a stopped one does not end at its exit.
	s.types("kill -9 %1; while kill -0 %1 2>/dev/null; do jobs >/dev/null; done; printf '\\033[1;32mgr\\303\\274n\\033[0m\\n'\n")
	s.shows("\x1b[1;32mgr\u00fcn\x1b[0m\r\n")
	s.types("exit 9\n")
	s.exits(9)
}

// fullScreen runs an editor in the machine and the same one here, with the same
// keys, and compares what the two drew, byte by byte.
func fullScreen(t *testing.T, d *daemon, id string) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("a line of text\n", 60)), 0o600); err != nil {
		t.Fatal(err)
	}
	d.must("exec", id, "--", "mkdir", "-p", filepath.Dir(text))
	d.must("cp", text, id+":"+text)
	draw := func(s *screen) string {
		s.shows("1/60 1%")
		s.types("G")
		s.shows("60/60 100%")
		s.types("30G")
		s.shows("30/60 50%")
		s.types("dd")
		s.shows("Delete 1 lines")
		s.types(":q!\n")
		s.exits(0)
		return s.text()
	}
	there := draw(d.onTerminal(t, 24, 80, "exec", "-t", id, "--", "vi", text))
	here := exec.Command("busybox", "vi", text)
	here.Env = append(os.Environ(), "TERM=xterm")
	if here := draw(onTerminal(t, 24, 80, here)); here != there {
		t.Errorf("the machine's editor drew %q, the one here %q", there, here)
	}
	s := d.onTerminal(t, 24, 80, "exec", "-t", id, "--", "top", "-d", "1")
	s.shows("PID")
	s.shows("/init")
	s.types("q")
	s.exits(0)
}

// detaches leaves a terminal, comes back and finds it as it was.
func detaches(t *testing.T, d *daemon, id string) {
	s := d.onTerminal(t, 24, 80, "exec", "-t", id, "--", "sh", "-c", "echo pid-$$; while read -r a; do echo got-$a; done; exit 6")
	s.shows("pid-")
	s.types("one\n")
	s.shows("got-one")
	s.types("\x10\x11")
	s.exits(0)
	_, hint, ok := strings.Cut(s.text(), "fuse attach ")
	if !ok {
		t.Fatalf("no word of how to come back: %q", s.text())
	}
	back := d.onTerminal(t, 24, 80, append([]string{"attach"}, strings.Fields(hint)...)...)
	back.shows("got-one") // what was there before is shown again
	back.types("two\n")
	back.shows("got-two")
	back.types("\x04")
	back.exits(6)
}

// outlivesTheServer kills the server while output is followed: the command goes
// on, and not a byte is lost or repeated.
func outlivesTheServer(t *testing.T, d *daemon, id string) {
	const lines = 300_000
	cmd := exec.Command(bins.fuse, "--url", d.url, "exec", "--stream", id, "--", "sh", "-c", fmt.Sprintf("seq 1 %d", lines))
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+d.home, "HOME="+d.home, "FUSE_TOKEN="+d.token())
	out := &watched{wake: make(chan struct{})}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = out, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 2*time.Minute, "output comes", func() bool { return len(out.String()) > 100_000 })
	at := strings.TrimPrefix(d.url, "http://")
	d.kill()
	*d = *dev(d.t, bins.fuse, d.dir, nil, "--listen", at)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("the command: %v; %s", err, said.String())
	}
	want := sha256.New()
	for i := range lines {
		fmt.Fprintln(want, i+1)
	}
	if got := sha256.Sum256([]byte(out.String())); !bytes.Equal(got[:], want.Sum(nil)) {
		t.Errorf("other bytes than were written: %d of them", len(out.String()))
	}
}

// transfers copies a file up and down and prints how fast, and what memory the
// server and host agent, one process, and the guest's agent need for it.
func transfers(t *testing.T, d *daemon, id string) {
	size := testkit.Count(32<<20, 1<<30)
	dir := t.TempDir()
	from := filepath.Join(dir, "from")
	f, err := os.Create(from)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	block := make([]byte, 1<<20)
	for i := range size >> 20 {
		copy(block, "block "+strconv.Itoa(i))
		for _, w := range []interface{ Write([]byte) (int, error) }{f, sum} {
			if _, err := w.Write(block); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	agent := func() int {
		got := strings.Fields(d.must("exec", id, "--", "sh", "-c", "grep VmRSS /proc/1/status"))
		n, _ := strconv.Atoi(got[1])
		return n
	}
	host := func() int {
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(d.cmd.Process.Pid) + "/status")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(raw), "VmHWM:")
		n, _ := strconv.Atoi(strings.Fields(rest)[0])
		return n
	}
	agentBefore, hostBefore := agent(), host()
	began := time.Now()
	d.must("cp", from, id+":/root/big")
	up := time.Since(began)
	began = time.Now()
	d.must("cp", id+":/root/big", filepath.Join(dir, "to"))
	down := time.Since(began)
	agentAfter, hostAfter := agent(), host()
	got, err := os.ReadFile(filepath.Join(dir, "to"))
	if err != nil {
		t.Fatal(err)
	}
	if back := sha256.Sum256(got); hex.EncodeToString(back[:]) != hex.EncodeToString(sum.Sum(nil)) {
		t.Error("other bytes came back")
	}
	mb := float64(size) / 1e6
	t.Logf("%.0f MB: up %.1f MB/s, down %.1f MB/s; server and host agent %d kB, at most %d more; guest agent %d kB, then %d",
		mb, mb/up.Seconds(), mb/down.Seconds(), hostBefore, hostAfter-hostBefore, agentBefore, agentAfter)
	if hostAfter-hostBefore > 96<<10 || agentAfter-agentBefore > 16<<10 {
		t.Errorf("memory grew: server and host agent by %d kB, guest agent by %d kB", hostAfter-hostBefore, agentAfter-agentBefore)
	}
	tree := filepath.Join(dir, "tree")
	if err := os.MkdirAll(filepath.Join(tree, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "sub", "x"), []byte("x"), 0o751); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(tree, "sub", "x"), 1234, 2345); err != nil {
		t.Fatal(err)
	}
	d.must("cp", tree, id+":/root")
	if got := d.must("exec", id, "--", "stat", "-c", "%a %u:%g", "/root/tree/sub/x"); got != "751 1234:2345\n" {
		t.Errorf("the copied file is %q", got)
	}
	d.must("exec", id, "--", "rm", "-rf", "/root/big", "/root/tree")
}

// memoryHog takes all memory there is: it ends, the machine's agent does not.
func memoryHog(t *testing.T, d *daemon, id string) {
	o := d.fuse("exec", "--timeout", "300s", id, "--", "sh", "-c", "head -c 1000000000 /dev/zero | tail -c 900000000 | wc -c")
	if o.code == 124 {
		t.Errorf("the hog: %+v", o)
	}
	if got := d.must("exec", id, "--", "echo", "alive"); got != "alive\n" {
		t.Errorf("after it: %q", got)
	}
}

// fullDisk copies to a file system without room: the answer says so, and once
// there is room the copy works.
func fullDisk(t *testing.T, d *daemon, id string) {
	d.must("exec", id, "--", "sh", "-c", "mkdir -p /mnt/small && mount -t tmpfs -o size=1m small /mnt/small")
	data := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(data, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if o := d.fuse("cp", data, id+":/mnt/small/more"); o.code == 0 || !strings.Contains(o.err, "disk is full") {
		t.Errorf("a copy to a full disk: %+v", o)
	}
	d.must("exec", id, "--", "sh", "-c", "rm -f /mnt/small/.fuse-part-* && mount -o remount,size=8m /mnt/small")
	d.must("cp", data, id+":/mnt/small/more")
}

// fullRoot lets a machine fill its own root, to the last block: it is spoken to,
// judged, changed and rebooted as before, and once there is room all is well.
func fullRoot(t *testing.T, d *daemon) {
	const id = "fuse-full"
	d.must("create", "--task-id", "full", "--ram-mb", "256", "--storage-gb", "1", "--health-cmd", "! test -e /dev/sick", "--health-interval", "1s", "--health-retries", "1")
	d.must("exec", "--timeout", "300s", id, "--", "sh", "-c",
		"fallocate -l $(($(df -k / | awk 'NR == 2 {print $4}') - 4096))k /root/fill || dd if=/dev/zero of=/root/fill bs=1M; dd if=/dev/zero of=/root/rest bs=4k; sync")
	full := func() {
		t.Helper()
		if o := d.fuse("exec", id, "--", "sh", "-c", "echo more >/root/more"); o.code == 0 || !strings.Contains(o.err, "No space left") {
			t.Errorf("the root is not full: %+v", o)
		}
	}
	judged := func(verdict string) {
		t.Helper()
		testkit.Eventually(t, time.Minute, "the verdict is "+verdict, func() bool {
			return strings.Contains(d.fuse("exec", id, "--", "cat", "/fuse/health.json").out, `"`+verdict+`"`) // before the first verdict there is none
		})
	}
	full()
	judged("passing")
	d.must("exec", id, "--", "touch", "/dev/sick")
	judged("failing")
	d.must("exec", id, "--", "rm", "/dev/sick")
	judged("passing")
	d.must("update", id, "--secret", "key=new")
	if got := d.must("exec", id, "--", "cat", "/fuse/secrets.json"); got != `{"key":"new"}` {
		t.Errorf("the secrets are %q", got)
	}
	boot := func() string { return d.fuse("exec", id, "--", "cat", "/proc/sys/kernel/random/boot_id").out }
	before := d.must("exec", id, "--", "cat", "/proc/sys/kernel/random/boot_id")
	testkit.Eventually(t, 4*time.Minute, "the machine is back", func() bool {
		b := boot()
		if b == before { // the command may have been cut before it began
			d.fuse("exec", "--timeout", "3s", id, "--", "reboot", "-f")
		}
		return b != "" && b != before
	})
	full()
	judged("passing")
	if got := d.must("exec", id, "--", "cat", "/fuse/secrets.json"); got != `{"key":"new"}` {
		t.Errorf("after the reboot the secrets are %q", got)
	}
	d.must("exec", id, "--", "sh", "-c", "rm /root/fill /root/rest && echo more >/root/more")
	d.must("rm", id)
}
