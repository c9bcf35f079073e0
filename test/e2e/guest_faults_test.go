package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/cutter"
)

// command is fuse against the daemon, or against what stands before it.
func (d *daemon) command(url string, args ...string) *exec.Cmd {
	cmd := exec.Command(bins.fuse, append([]string{"--url", url}, args...)...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+d.home, "HOME="+d.home, "FUSE_TOKEN="+d.token())
	return cmd
}

// overCuts copies up and down, sends input through a program and back, and
// follows what another writes, all at once, over connections that are cut at
// random bytes: each hash is as if nothing had happened.
func overCuts(t *testing.T, d *daemon, id string) {
	size := testkit.Count(2<<20, 64<<20)
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(data) // never fails
	sum := sha256.Sum256(data)
	want := hex.EncodeToString(sum[:])
	dir := t.TempDir()
	from := filepath.Join(dir, "from")
	if err := os.WriteFile(from, data, 0o600); err != nil {
		t.Fatal(err)
	}
	cut := cutter.New(t, d.url, int64(size)/4)
	var all sync.WaitGroup
	run := func(what string, do func() error) {
		all.Go(func() {
			if err := do(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
	fuse := func(in io.Reader, out io.Writer, args ...string) error {
		cmd := d.command(cut.URL(), args...)
		var said bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, &said
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("fuse %s: %w: %s", args[0], err, &said)
		}
		return nil
	}
	run("up and down", func() error {
		if err := fuse(nil, nil, "cp", from, id+":/root/cut"); err != nil {
			return err
		}
		got := sha256.New()
		if err := fuse(nil, got, "cp", id+":/root/cut", "-"); err != nil {
			return err
		}
		return sameHash(got.Sum(nil), want)
	})
	run("through cat", func() error {
		got := sha256.New()
		if err := fuse(bytes.NewReader(data), got, "exec", "--stream", "-i", id, "--", "cat"); err != nil {
			return err
		}
		return sameHash(got.Sum(nil), want)
	})
	lines := size / 8
	run("what a program writes", func() error {
		got, numbers := sha256.New(), sha256.New()
		for i := range lines {
			fmt.Fprintln(numbers, i+1)
		}
		if err := fuse(nil, got, "exec", "--stream", id, "--", "seq", "1", strconv.Itoa(lines)); err != nil {
			return err
		}
		return sameHash(got.Sum(nil), hex.EncodeToString(numbers.Sum(nil)))
	})
	all.Wait()
	if t.Logf("%d connections were cut", cut.Cuts()); cut.Cuts() == 0 {
		t.Error("no connection was cut")
	}
	if got := d.must("exec", id, "--", "sh", "-c", "sha256sum </root/cut; rm /root/cut"); !strings.HasPrefix(got, want) {
		t.Errorf("the file there is %s", got)
	}
}

func sameHash(got []byte, want string) error {
	if hex.EncodeToString(got) != want {
		return errors.New("other bytes than were sent")
	}
	return nil
}

// resident is the memory of a process of this machine, in bytes.
func resident(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(raw), "VmRSS:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kb << 10
}

// slowReader follows much output and takes none of it for a while: the program
// is held up, and server, host agent and guest agent keep next to nothing.
func slowReader(t *testing.T, d *daemon, id string) {
	size := testkit.Count(12<<20, 1<<30)
	agent := func() int {
		got := strings.Fields(d.must("exec", id, "--", "grep", "VmRSS", "/proc/1/status"))
		kb, err := strconv.Atoi(got[1])
		if err != nil {
			t.Fatal(err)
		}
		return kb << 10
	}
	host, guest := resident(t, d.cmd.Process.Pid), agent()
	cmd := d.command(d.url, "exec", "--stream", id, "--", "head", "-c", strconv.Itoa(size), "/dev/zero")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	written := func() string {
		return d.must("exec", id, "--", "sh", "-c", `for p in /proc/[0-9]*; do read -r -d '' c <$p/cmdline; [ "$c" = head ] && grep wchar $p/io; done; :`)
	}
	last, quiet := "", 0
	testkit.Eventually(t, 3*time.Minute, "the program is held up", func() bool {
		if now := written(); now != last || now == "" {
			last, quiet = now, 0
		}
		quiet++
		return quiet > 3
	})
	var at int
	if _, err := fmt.Sscanf(last, "wchar: %d", &at); err != nil || at >= size/2 {
		t.Errorf("%q (%v) of %d was written for a reader that took none", last, err, size)
	}
	hostMore, guestMore := resident(t, d.cmd.Process.Pid)-host, agent()-guest
	t.Logf("a reader that stands still, at byte %d of %d: server and host agent %d KiB more, guest agent %d KiB", at, size, hostMore>>10, guestMore>>10)
	if hostMore > 64<<20 || guestMore > 16<<20 {
		t.Errorf("memory grew: server and host agent by %d bytes, guest agent by %d", hostMore, guestMore)
	}
	n, err := io.Copy(io.Discard, out)
	if err := errors.Join(err, cmd.Wait()); err != nil || n != int64(size) {
		t.Errorf("%d bytes of %d came: %v", n, size, err)
	}
}

// readerGone kills who waits for a command: nothing of it goes on.
func readerGone(t *testing.T, d *daemon, id string) {
	const seconds = "864213"
	cmd := d.command(d.url, "exec", "--timeout", "10m", id, "--", "sh", "-c", "sleep "+seconds+" & sleep "+seconds)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	asleep := func() int { return strings.Count(d.must("exec", id, "--", "ps"), "sleep "+seconds) }
	testkit.Eventually(t, 2*time.Minute, "the command runs", func() bool { return asleep() >= 2 })
	if got := d.must("process", "ls", id); !strings.Contains(got, "exec-") {
		t.Errorf("an exec is not among the processes: %s", got)
	}
	_ = cmd.Process.Kill() // it runs
	_ = cmd.Wait()
	testkit.Eventually(t, 2*time.Minute, "the command is gone", func() bool { return asleep() == 0 })
}

// paste types a long text, and letters whose bytes come apart, into a program.
func paste(t *testing.T, d *daemon, id string) {
	size := testkit.Count(256<<10, 10<<20)
	text := bytes.Repeat([]byte("äöü € 漢字 \x03\x04\x1a "), size/20)
	text = append(text, bytes.Repeat([]byte("."), size)...)[:size]
	sum := sha256.Sum256(text)
	s := d.onTerminal(t, 24, 80, "exec", "-t", "--detach-keys", "ctrl-]", id, "--", "sh", "-c",
		`printf '\303'; sleep 1; printf '\274-split\n'; stty raw -echo; printf ready; head -c "$0" | sha256sum; stty sane`, strconv.Itoa(size))
	s.shows("ü-split")
	s.shows("ready")
	s.types(string(text))
	testkit.Eventually(t, time.Duration(testkit.Count(4, 20))*time.Minute, "the paste has come", func() bool { return strings.Count(s.text(), "  -") > 0 })
	s.shows(hex.EncodeToString(sum[:]))
	s.exits(0)
}

// refusals are what is wrong with a command before it runs.
func refusals(t *testing.T, d *daemon, id string) {
	long := strings.Repeat("x", 100<<10)
	for _, c := range []struct {
		what string
		code int
		says string
		args []string
	}{
		{"a missing program", 127, "not found", []string{"no-such-program"}},
		{"a program that is none", 126, "permission denied", []string{"/etc/passwd"}},
		{"arguments too long together", 1, "1048576 bytes", append([]string{"echo"}, strings.Fields(strings.Repeat(long+" ", 12))...)},
	} {
		for _, how := range [][]string{{"exec"}, {"exec", "--stream"}} {
			args := append(append(how, id, "--"), c.args...)
			o := d.fuse(args...)
			if o.code != c.code || !strings.Contains(o.err, c.says) {
				t.Errorf("%s by %v: exit code %d, %.300s", c.what, how, o.code, o.err)
			}
		}
	}
	a, err := d.http("POST", "/v1/environments/"+id+"?action=exec", `{"cmd":["echo","`+long+long+`"]}`)
	if err != nil || a.status != 400 || !strings.Contains(a.raw, "131071 bytes a word") {
		t.Errorf("a word too long: %d %.300s, %v", a.status, a.raw, err)
	}
}
