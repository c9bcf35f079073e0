package sshx_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/playguard/sshx/sshdtest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func target(s *sshdtest.Server) sshx.Target {
	return sshx.Target{Address: s.Address, User: s.User, HostKey: s.HostKey, Keys: [][]byte{s.Key}}
}

// patient are limits for a machine that has much else to do.
var patient = sshx.Timeouts{Dial: time.Minute, Handshake: time.Minute, Session: time.Minute, KeepAlive: time.Minute}

// scaled tries something with longer and longer limits, until one is long enough for a
// machine that has much else to do. What must hold with any limit, do checks itself.
func scaled(t *testing.T, first time.Duration, do func(limit time.Duration) error) {
	t.Helper()
	for limit := first; ; limit *= 5 {
		err := do(limit)
		if err == nil {
			return
		}
		if t.Logf("with a limit of %s: %v", limit, err); limit > 10*time.Second {
			t.Fatal("no limit is long enough")
		}
	}
}

func dial(t *testing.T, target sshx.Target, limits sshx.Timeouts) *sshx.Conn {
	t.Helper()
	c, err := sshx.Dial(t.Context(), target, limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// What the user of the machine that tests has in a profile is in no test's way.
func TestServersOfTestsReadNoProfile(t *testing.T) {
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ".bashrc"), []byte("echo noise\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := sshdtest.Start(t, sshdtest.Options{Config: []string{"SetEnv HOME=" + home, "SetEnv ANOTHER=too"}})
	res, err := dial(t, target(s), patient).Run(t.Context(), sshx.Command{Line: "echo $HOME $ANOTHER"})
	if err != nil || string(res.Stdout) != home+" too\n" {
		t.Errorf("%q %v", res.Stdout, err)
	}
}

func TestRun(t *testing.T) {
	s := sshdtest.Start(t, sshdtest.Options{})
	c := dial(t, target(s), patient)
	for _, test := range []struct {
		line, stdin    string
		ending         observe.Ending
		status         int
		stdout, stderr string
	}{
		{line: "echo out; echo err >&2", ending: observe.EndedExit, stdout: "out\n", stderr: "err\n"},
		{line: "exit 3", ending: observe.EndedExit, status: 3},
		{line: "exit 255", ending: observe.EndedExit, status: 255},
		{line: "no-such-program", ending: observe.EndedExit, status: 127, stderr: "*"},
		{line: "kill -9 $$", ending: observe.EndedSignal, status: 137},
		{line: "timeout 0.05 sleep 60", ending: observe.EndedExit, status: 124},
		{line: "sh -s", stdin: "echo from stdin\nexit 7\n", ending: observe.EndedExit, status: 7, stdout: "from stdin\n"},
	} {
		res, err := c.Run(t.Context(), sshx.Command{Line: test.line, Stdin: []byte(test.stdin)})
		if err != nil {
			t.Errorf("%s: %v", test.line, err)
			continue
		}
		if res.Ending != test.ending || res.Status != test.status || string(res.Stdout) != test.stdout ||
			test.stderr != "*" && string(res.Stderr) != test.stderr || res.To.Before(res.From) {
			t.Errorf("%s: %+v, stdout %q, stderr %q", test.line, res, res.Stdout, res.Stderr)
		}
	}
}

// wantEnding holds an error to one ending.
func wantEnding(t *testing.T, err error, want observe.Ending) {
	t.Helper()
	if err == nil || sshx.EndingOf(err) != want {
		t.Errorf("ending %q, want %q: %v", sshx.EndingOf(err), want, err)
	}
}

func TestDialFailures(t *testing.T) {
	s := sshdtest.Start(t, sshdtest.Options{})
	other := sshdtest.Start(t, sshdtest.Options{})
	quick := sshx.Timeouts{Handshake: 300 * time.Millisecond}

	t.Run("port closed", func(t *testing.T) {
		to := target(s)
		to.Address = "127.0.0.1:1"
		_, err := sshx.Dial(t.Context(), to, patient)
		wantEnding(t, err, observe.EndedDial)
	})
	t.Run("host key changed", func(t *testing.T) {
		to := target(s)
		to.HostKey = other.HostKey
		_, err := sshx.Dial(t.Context(), to, patient)
		wantEnding(t, err, observe.EndedHostKey)
		var key *sshx.HostKeyError
		if !errors.As(err, &key) || key.Shown != s.HostKey || key.Pinned != other.HostKey {
			t.Errorf("%+v", key)
		}
	})
	t.Run("host key unknown", func(t *testing.T) {
		to := target(s)
		to.HostKey = ""
		_, err := sshx.Dial(t.Context(), to, patient)
		wantEnding(t, err, observe.EndedHostKey)
		var key *sshx.HostKeyError
		if !errors.As(err, &key) || key.Shown != s.HostKey || !strings.HasPrefix(key.Fingerprint, "SHA256:") {
			t.Errorf("%+v", key)
		}
	})
	t.Run("key removed", func(t *testing.T) {
		locked := sshdtest.Start(t, sshdtest.Options{})
		to := target(locked)
		locked.Authorize(t, sshdtest.NewKey(t))
		_, err := sshx.Dial(t.Context(), to, patient)
		wantEnding(t, err, observe.EndedAuth)
	})
	t.Run("peer that says nothing", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		to := target(s)
		to.Address = l.Addr().String()
		_, err = sshx.Dial(t.Context(), to, quick)
		wantEnding(t, err, observe.EndedDeadline)
	})
	t.Run("not an SSH server", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
				c.Close()
			}
		}()
		to := target(s)
		to.Address = l.Addr().String()
		_, err = sshx.Dial(t.Context(), to, patient)
		wantEnding(t, err, observe.EndedHandshake)
	})
	for name, change := range map[string]func(*sshx.Target){
		"no port":       func(to *sshx.Target) { to.Address = "example.org" },
		"no user":       func(to *sshx.Target) { to.User = "" },
		"user in two":   func(to *sshx.Target) { to.User = "a b" },
		"no key":        func(to *sshx.Target) { to.Keys = nil },
		"broken key":    func(to *sshx.Target) { to.Keys = [][]byte{[]byte("-----BEGIN SECRET-----")} },
		"broken pin":    func(to *sshx.Target) { to.HostKey = "rubbish" },
		"too many hops": func(to *sshx.Target) { to.Jumps = make([]sshx.Target, 5) },
	} {
		t.Run(name, func(t *testing.T) {
			to := target(s)
			change(&to)
			_, err := sshx.Dial(t.Context(), to, quick)
			if fleet.CodeOf(err) != fleet.CodeInvalidArgument || strings.Contains(err.Error(), "SECRET") {
				t.Error(err)
			}
		})
	}
}

func TestLostConnections(t *testing.T) {
	s := sshdtest.Start(t, sshdtest.Options{})
	through := func(t *testing.T) (*sshdtest.Link, sshx.Target) {
		link := sshdtest.NewLink(t, s.Address)
		to := target(s)
		to.Address = link.Address
		return link, to
	}
	// tried runs a command that says when it has begun and then goes on.
	tried := func(ctx context.Context, c *sshx.Conn) (<-chan error, error) {
		began := &signalWriter{c: make(chan struct{})}
		ended := make(chan error, 1)
		go func() {
			_, err := c.Run(ctx, sshx.Command{Line: "echo begun; exec sleep 120", Stdout: began})
			ended <- err
		}()
		select {
		case <-began.c:
			return ended, nil
		case err := <-ended:
			return nil, fmt.Errorf("it ended before it began: %w", err)
		}
	}
	started := func(t *testing.T, ctx context.Context, c *sshx.Conn) <-chan error {
		ended, err := tried(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		return ended
	}
	t.Run("link cut", func(t *testing.T) {
		link, to := through(t)
		ended := started(t, t.Context(), dial(t, to, patient))
		link.Cut()
		wantEnding(t, <-ended, observe.EndedWithout)
	})
	t.Run("sshd killed", func(t *testing.T) {
		dying := sshdtest.Start(t, sshdtest.Options{})
		ended := started(t, t.Context(), dial(t, target(dying), patient))
		dying.Stop()
		wantEnding(t, <-ended, observe.EndedWithout)
	})
	t.Run("our deadline", func(t *testing.T) {
		_, to := through(t)
		c := dial(t, to, patient)
		ctx, cancel := context.WithCancel(t.Context())
		ended := started(t, ctx, c)
		cancel()
		wantEnding(t, <-ended, observe.EndedDeadline)
		if res, err := c.Run(t.Context(), sshx.Command{Line: "echo still"}); err != nil || string(res.Stdout) != "still\n" {
			t.Errorf("the connection went with one session: %v", err)
		}
	})
	t.Run("silent peer", func(t *testing.T) {
		scaled(t, 40*time.Millisecond, func(limit time.Duration) error {
			link, to := through(t)
			limits := patient
			limits.KeepAlive = limit
			c := dial(t, to, limits)
			ended, err := tried(t.Context(), c)
			if err != nil {
				return err
			}
			link.Hold()
			wantEnding(t, <-ended, observe.EndedDeadline)
			<-c.Done()
			_, err = c.Run(t.Context(), sshx.Command{Line: "true"})
			wantEnding(t, err, observe.EndedDeadline)
			return nil
		})
	})
	t.Run("sessions that open late", func(t *testing.T) {
		scaled(t, 150*time.Millisecond, func(limit time.Duration) error {
			link, to := through(t)
			limits := patient
			limits.Session = limit
			c := dial(t, to, limits)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended, err := tried(ctx, c)
			if err != nil {
				return err
			}
			link.Hold()
			for range sshx.MaxSessions - 1 {
				_, err := c.Run(t.Context(), sshx.Command{Line: "true"})
				wantEnding(t, err, observe.EndedDeadline)
				if !strings.Contains(err.Error(), "open a session") {
					t.Error(err)
				}
			}
			// Those that are still to open are counted.
			short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer stop()
			_, err = c.Run(short, sshx.Command{Line: "true"})
			wantEnding(t, err, observe.EndedDeadline)
			if !strings.Contains(err.Error(), "wait for a session") {
				t.Error(err)
			}
			link.Release()
			testkit.Eventually(t, time.Minute, "the connection serves again", func() bool {
				res, err := c.Run(t.Context(), sshx.Command{Line: "echo here"})
				return err == nil && string(res.Stdout) == "here\n"
			})
			select {
			case err := <-ended:
				t.Errorf("what was under way ended with the stall: %v", err)
			default:
				cancel()
				wantEnding(t, <-ended, observe.EndedDeadline)
			}
			return nil
		})
	})
	t.Run("a caller that leaves before its session opens", func(t *testing.T) {
		link, to := through(t)
		c := dial(t, to, patient)
		link.Hold()
		short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer stop()
		_, err := c.Run(short, sshx.Command{Line: "true"})
		wantEnding(t, err, observe.EndedDeadline)
		link.Release()
		if res, err := c.Run(t.Context(), sshx.Command{Line: "echo here"}); err != nil || string(res.Stdout) != "here\n" {
			t.Errorf("the connection went with one caller: %v", err)
		}
	})
	t.Run("a retired connection ends after a session that opens late", func(t *testing.T) {
		link, to := through(t)
		limits := patient
		limits.Session = 50 * time.Millisecond
		c := dial(t, to, limits)
		link.Hold()
		_, err := c.Run(t.Context(), sshx.Command{Line: "true"})
		wantEnding(t, err, observe.EndedDeadline)
		c.Retire()
		link.Release()
		<-c.Done()
	})
	t.Run("a stall that a keepalive survives", func(t *testing.T) {
		scaled(t, 300*time.Millisecond, func(limit time.Duration) error {
			link, to := through(t)
			limits := patient
			limits.KeepAlive = limit
			c := dial(t, to, limits)
			link.Hold()
			defer time.AfterFunc(2*limit, link.Release).Stop()
			res, err := c.Run(t.Context(), sshx.Command{Line: "echo here"})
			if err == nil && string(res.Stdout) != "here\n" {
				t.Errorf("%+v", res)
			}
			return err
		})
	})
	t.Run("too much output", func(t *testing.T) {
		_, to := through(t)
		c := dial(t, to, patient)
		res, err := c.Run(t.Context(), sshx.Command{Line: "yes"})
		wantEnding(t, err, observe.EndedOutputOver)
		if len(res.Stdout) != sshx.MaxStdout {
			t.Errorf("%d bytes kept", len(res.Stdout))
		}
		res, err = c.Run(t.Context(), sshx.Command{Line: "yes | head -c 200000 >&2"})
		if err != nil || len(res.Stderr) != sshx.MaxStderr {
			t.Errorf("%d bytes of errors kept, %v", len(res.Stderr), err)
		}
	})
}

// signalWriter closes c at the first byte.
type signalWriter struct {
	c    chan struct{}
	once sync.Once
}

func (w *signalWriter) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.c) })
	return len(p), nil
}

// More callers than sessions wait for each other: a server that allows no more
// than those, and for each the one before that it has not yet counted off, refuses none.
func TestSessionsAreBounded(t *testing.T) {
	s := sshdtest.Start(t, sshdtest.Options{Config: []string{"MaxSessions 8"}})
	c := dial(t, target(s), patient)
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			if res, err := c.Run(t.Context(), sshx.Command{Line: "sleep 0.02; echo done"}); err != nil || string(res.Stdout) != "done\n" {
				t.Errorf("%q, %v", res.Stdout, err)
			}
		})
	}
	all.Wait()
}

// A server that allows fewer sessions refuses them; that is no lost link.
func TestSessionRefused(t *testing.T) {
	s := sshdtest.Start(t, sshdtest.Options{Config: []string{"MaxSessions 1"}})
	c := dial(t, target(s), patient)
	began := &signalWriter{c: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := c.Run(ctx, sshx.Command{Line: "echo; exec sleep 120", Stdout: began})
		ended <- err
	}()
	<-began.c
	_, err := c.Run(t.Context(), sshx.Command{Line: "true"})
	wantEnding(t, err, observe.EndedSession)
	cancel()
	<-ended
}

func TestRetire(t *testing.T) {
	s := sshdtest.Start(t, sshdtest.Options{})
	c := dial(t, target(s), patient)
	began, release := &signalWriter{c: make(chan struct{})}, newPipe()
	ended := make(chan error, 1)
	go func() {
		_, err := c.Run(t.Context(), sshx.Command{Line: "echo; read line; exit 0", Input: release, Stdout: began})
		ended <- err
	}()
	<-began.c
	c.Retire()
	_, err := c.Run(t.Context(), sshx.Command{Line: "true"})
	wantEnding(t, err, observe.EndedSession)
	release.end("go\n")
	if err := <-ended; err != nil {
		t.Errorf("a session under way was cut: %v", err)
	}
	<-c.Done()
	for range 100 { // it has ended, and has room
		_, err = c.Run(t.Context(), sshx.Command{Line: "true"})
		wantEnding(t, err, observe.EndedSession)
	}
}

// serveAgent serves an agent until the test ends.
func serveAgent(t *testing.T, keys agent.Agent) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { _ = agent.ServeAgent(keys, conn); conn.Close() })
		}
	})
	t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	return socket
}

// An agent that holds more keys than sshd lets anybody try says so, when none of
// those that were shown was taken.
func TestAnAgentWithManyKeys(t *testing.T) {
	s := sshdtest.Start(t, sshdtest.Options{})
	keys := agent.NewKeyring()
	add := func(key any) {
		t.Helper()
		if err := keys.Add(agent.AddedKey{PrivateKey: key}); err != nil {
			t.Fatal(err)
		}
	}
	for range 7 {
		_, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		add(&key)
	}
	mine, err := ssh.ParseRawPrivateKey(s.Key)
	if err != nil {
		t.Fatal(err)
	}
	add(mine)
	to := sshx.Target{Address: s.Address, User: s.User, HostKey: s.HostKey, Agent: serveAgent(t, keys)}
	_, err = sshx.Dial(t.Context(), to, patient)
	wantEnding(t, err, observe.EndedAuth)
	if !strings.Contains(err.Error(), "3 more keys of the agent were not shown") {
		t.Error(err)
	}
}

func TestJumpAndAgent(t *testing.T) {
	s, jump := sshdtest.Start(t, sshdtest.Options{}), sshdtest.Start(t, sshdtest.Options{})
	keys := agent.NewKeyring()
	for _, pem := range [][]byte{s.Key, jump.Key} {
		key, err := ssh.ParseRawPrivateKey(pem)
		if err != nil {
			t.Fatal(err)
		}
		if err := keys.Add(agent.AddedKey{PrivateKey: key}); err != nil {
			t.Fatal(err)
		}
	}
	socket := serveAgent(t, keys)
	to := sshx.Target{Address: s.Address, User: s.User, HostKey: s.HostKey, Agent: socket, Jumps: []sshx.Target{{Address: jump.Address, HostKey: jump.HostKey}}}
	c := dial(t, to, patient)
	res, err := c.Run(t.Context(), sshx.Command{Line: "echo $SSH_CONNECTION"})
	if err != nil || !bytes.Contains(res.Stdout, []byte(" "+strings.TrimPrefix(s.Address, "127.0.0.1:")+"\n")) {
		t.Errorf("%q, %v", res.Stdout, err)
	}
	jump.Stop()
	<-c.Done()

	to.Jumps[0].HostKey = s.HostKey
	_, err = sshx.Dial(t.Context(), to, patient)
	wantEnding(t, err, observe.EndedDial) // the jump host is gone
}

// Whatever an argument holds, each shell gives it back as it was.
func FuzzQuote(f *testing.F) {
	for _, s := range []string{"", "a b", "it's", "$HOME `x` \\ \"", "-n", "\n", "'", "''", "é\xff", "*?[!~#", "a\x00b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		quoted, err := sshx.Quote("printf", "%s", s)
		if strings.ContainsRune(s, 0) {
			if fleet.CodeOf(err) != fleet.CodeInvalidArgument {
				t.Errorf("NUL: %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, shell := range [][]string{{"dash", "-c"}, {"bash", "-c"}, {"busybox", "sh", "-c"}} {
			out, err := exec.Command(shell[0], append(shell[1:], quoted)...).Output()
			if err != nil || string(out) != s {
				t.Errorf("%s: %q became %q: %v", shell[0], s, out, err)
			}
		}
	})
}

// gone is a reader who has left.
type gone struct{}

func (gone) Write([]byte) (int, error) { return 0, errors.New("the reader has left") }

// A host that goes on writing to nobody does not keep its caller.
func TestNobodyReads(t *testing.T) {
	c := dial(t, target(sshdtest.Start(t, sshdtest.Options{})), patient)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, cmd := range map[string]sshx.Command{
		"output": {Line: "exec timeout 90 yes", Stdout: gone{}},
		"errors": {Line: "exec timeout 90 yes >&2", Stderr: gone{}},
	} {
		_, err := c.Run(ctx, cmd)
		t.Log(name)
		wantEnding(t, err, observe.EndedOutputOver)
	}
}
