package runner_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/testkit"
)

// talker is a playground whose services say something when they begin.
func talker(m *marquee, services ...string) play {
	p := m.play("pg1", services...)
	p.compose = strings.ReplaceAll(p.compose, `trap "exit 0" TERM;`, `trap "exit 0" TERM; echo begun q; echo err >&2;`)
	return p
}

func (m *marquee) exec(e runner.Exec) (int, string, string, error) {
	var out, errOut testkit.Output
	e.Playground, e.Stdout, e.Stderr = "pg1", &out, &errOut
	status, err := m.host.Exec(m.t.Context(), m.conn, e)
	return status, out.String(), errOut.String(), err
}

// processes counts those in all containers that carry a word on their command
// line.
func (m *marquee) processes(word string) int {
	ids, err := m.docker.Docker("ps", "-q")
	if err != nil {
		m.t.Fatal(err)
	}
	n := 0
	for _, id := range strings.Fields(ids) {
		top, err := m.docker.Docker("top", id)
		if err == nil {
			n += strings.Count(top, word)
		}
	}
	return n
}

// What people read and run, under each shell that a host may have.
func TestPeople(t *testing.T) {
	t.Parallel()
	d := dockertest.Start(t)
	shells := []string{"/bin/busybox", "/bin/dash", "/bin/bash"}
	for _, shell := range shells[:testkit.Count(1, 3)] {
		t.Run(filepath.Base(shell), func(t *testing.T) {
			m := marqueeOf(t, d, shell)
			if err := m.host.Enroll(t.Context(), m.conn); err != nil {
				t.Fatal(err)
			}
			p := talker(m, "web", "db")
			m.ok(p, 1, "op1", decide.Files{})
			m.ok(p, 1, "op2", decide.Up{})
			t.Run("logs", func(t *testing.T) { testLogs(t, m) })
			t.Run("exec", func(t *testing.T) { testExec(t, m) })
			t.Run("follow", func(t *testing.T) { testFollow(t, m, p) })
			t.Run("gone", func(t *testing.T) { testGone(t, m) })
			m.ok(p, 1, "op9", decide.Destroy{})
		})
	}
}

func testLogs(t *testing.T, m *marquee) {
	read := func(q runner.Logs) string {
		t.Helper()
		var out testkit.Output
		q.Playground = "pg1"
		if err := m.host.Logs(t.Context(), m.conn, q, &out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	for _, want := range []string{"web-1 | begun q\n", "web-1 | err\n", "db-1 | begun q\n", "db-1 | err\n"} {
		// What runs may not have come to say it yet.
		testkit.Eventually(t, 2*time.Minute, fmt.Sprintf("%q is in the logs", want), func() bool { return strings.Contains(read(runner.Logs{Tail: 100}), want) })
	}
	if one := read(runner.Logs{Tail: 1, Services: []string{"web"}, Stamps: true}); strings.Count(one, "\n") != 1 || !strings.HasPrefix(one, "web-1 | 2") {
		t.Errorf("%q", one)
	}
	if none := read(runner.Logs{Tail: 100, Services: []string{"other"}}); none != "" {
		t.Errorf("%q", none)
	}
	err := m.host.Logs(t.Context(), m.conn, runner.Logs{Playground: "pg1", Services: []string{"-x; true"}}, io.Discard)
	if fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("a bad name: %v", err)
	}
}

func testExec(t *testing.T, m *marquee) {
	for _, test := range []struct {
		e              runner.Exec
		status         int
		stdout, stderr string
	}{
		{e: runner.Exec{Command: []string{"sh", "-c", "echo out; echo err >&2; exit 7"}}, status: 7, stdout: "out\n", stderr: "err\n"},
		{e: runner.Exec{Command: []string{"sh", "-c", "exit 78"}}, status: 78},
		{e: runner.Exec{Command: []string{"sh", "-c", "exit 66"}}, status: 66},
		{e: runner.Exec{Command: []string{"sh", "-c", "kill -9 $$"}}, status: 137},
		{e: runner.Exec{Command: []string{"cat"}, Stdin: []byte("given\x00 in")}, stdout: "given\x00 in"},
		{e: runner.Exec{Command: []string{"echo", "it's", "$HOME", "a  b"}}, stdout: "it's $HOME a  b\n"},
		{e: runner.Exec{Command: []string{"sh", "-c", "echo $SECRET; pwd"}, Env: map[string]string{"SECRET": "s3 $x"}, Workdir: "/tmp", User: "0:0"}, stdout: "s3 $x\n/tmp\n"},
	} {
		test.e.Service = "web"
		status, stdout, stderr, err := m.exec(test.e)
		if err != nil || status != test.status || stdout != test.stdout || stderr != test.stderr {
			t.Errorf("%q: status %d, stdout %q, stderr %q, %v", test.e.Command, status, stdout, stderr, err)
		}
	}
	if status, _, stderr, err := m.exec(runner.Exec{Service: "web", Command: []string{"no-such-program"}}); err != nil || status != 126 && status != 127 {
		t.Errorf("no such program: %d %q %v", status, stderr, err)
	}
	for says, e := range map[string]runner.Exec{
		"no running container": {Service: "nothing", Command: []string{"true"}},
		"not ours":             {Service: "-x", Command: []string{"true"}},
		"is empty":             {Service: "web"},
		"environment file":     {Service: "web", Command: []string{"true"}, Env: map[string]string{"A": "1\nB=2"}},
	} {
		if _, _, _, err := m.exec(e); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}

	in, w := io.Pipe()
	var out testkit.Output
	ended := make(chan error, 1)
	go func() {
		status, err := m.host.Exec(t.Context(), m.conn, runner.Exec{
			Playground: "pg1", Service: "web", Command: []string{"sh"}, Input: in, Stdout: &out,
			Terminal: &sshx.Terminal{Name: "vt100", Size: sshx.Size{Rows: 30, Columns: 90}},
		})
		if err == nil && status != 5 {
			err = fmt.Errorf("status %d", status)
		}
		ended <- err
	}()
	// Typed before there is anything to read it: the terminal echoes it early.
	if _, err := w.Write([]byte("\x00")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("test -t 0 && echo on a $((40 + 2)) $TERM; exit 5\n")); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil || !strings.Contains(out.String(), "on a 42 vt100") || strings.Contains(out.String(), "FUSE-STREAM") {
		t.Errorf("terminal: %v, %q", err, out.String())
	}
	w.Close()
}

// A follower goes on when a container ends and comes back.
func testFollow(t *testing.T, m *marquee, p play) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out testkit.Output
	ended := make(chan error, 1)
	go func() {
		ended <- m.host.Logs(ctx, m.conn, runner.Logs{Playground: "pg1", Services: []string{"web"}, Follow: true, Tail: 10}, &out)
	}()
	testkit.Eventually(t, 2*time.Minute, "what is there", func() bool { return strings.Count(out.String(), "begun q") == 1 })
	m.ok(p, 1, "op3", decide.Stop{})
	m.ok(p, 1, "op4", decide.Up{})
	testkit.Eventually(t, 2*time.Minute, "what came after the restart", func() bool { return strings.Count(out.String(), "web-1 | begun q") == 2 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	testkit.Eventually(t, 2*time.Minute, "nothing follows any more", func() bool { return following(t, m) == 0 })
}

func following(t *testing.T, m *marquee) int {
	t.Helper()
	res, err := m.conn.Run(t.Context(), sshx.Command{Line: "ls " + m.host.Layout.Root() + "/streams/inst1"})
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(res.Stdout, []byte(".pid"))
}

// Who asked for a command goes away, or loses the connection: it ends.
func testGone(t *testing.T, m *marquee) {
	begin := func(ctx context.Context, conn *sshx.Conn, word string) <-chan error {
		var out testkit.Output
		ended := make(chan error, 1)
		go func() {
			_, err := m.host.Exec(ctx, conn, runner.Exec{Playground: "pg1", Service: "web", Command: []string{"sh", "-c", "echo go; while true; do sleep 1; done; : " + word}, Stdout: &out})
			ended <- err
		}()
		testkit.Eventually(t, 2*time.Minute, "the command runs", func() bool { return out.String() == "go\n" })
		return ended
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := begin(ctx, m.conn, "cancelled")
	cancel()
	if err := <-ended; err == nil {
		t.Error("a command whose caller has gone has a status")
	}
	testkit.Eventually(t, 2*time.Minute, "it ends", func() bool { return m.processes("cancelled") == 0 })

	conn, err := sshx.Dial(t.Context(), sshx.Target{Address: m.ssh.Address, User: m.ssh.User, HostKey: m.ssh.HostKey, Keys: [][]byte{m.ssh.Key}}, sshx.Timeouts{})
	if err != nil {
		t.Fatal(err)
	}
	ended = begin(t.Context(), conn, "disconnected")
	conn.Close()
	if err := <-ended; err == nil {
		t.Error("a command whose connection was lost has a status")
	}
	testkit.Eventually(t, 2*time.Minute, "it ends", func() bool { return m.processes("disconnected") == 0 })
	if n := m.processes("trap"); n == 0 {
		t.Error("the service itself has ended")
	}
}
