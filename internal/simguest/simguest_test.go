package simguest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/simguest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var files = map[string]string{"/etc/motd": "hello\n", "/run.sh": "echo from file\nexit 3\n"}

func machine(done <-chan struct{}) simguest.Machine {
	return simguest.Machine{Hostname: "box", Done: done, Read: func(path string) ([]byte, bool, error) {
		text, ok := files[path]
		return []byte(text), ok, nil
	}}
}

func TestCommands(t *testing.T) {
	sh := func(script string) []string { return []string{"sh", "-lc", script} }
	for _, test := range []struct {
		argv        []string
		stdin       string
		code        int
		stdout, err string // err is a part of standard error
	}{
		{argv: []string{"/bin/echo", "-n", "a  b", "c"}, stdout: "a  b c"},
		{argv: []string{"printf", `%s-%s\n`, "a", "b"}, stdout: "a-b\n"},
		{argv: []string{"cat"}, stdin: "x\x00\xff\n", stdout: "x\x00\xff\n"},
		{argv: []string{"cat", "/etc/motd", "-"}, stdin: "in", stdout: "hello\nin"},
		{argv: []string{"cat", "nothing"}, code: 1, err: "cat: can't open 'nothing': No such file"},
		{argv: []string{"seq", "3"}, stdout: "1\n2\n3\n"},
		{argv: []string{"seq", "9", "10"}, stdout: "9\n10\n"},
		{argv: []string{"hostname"}, stdout: "box\n"},
		{argv: []string{"test", "-f", "/etc/motd"}},
		{argv: []string{"test", "-f", "/nothing"}, code: 1},
		{argv: []string{"nothing"}, code: 127, err: "nothing: not found"},
		{argv: []string{"sleep", "x"}, code: 1, err: "invalid number"},
		{argv: sh("echo one; echo two"), stdout: "one\ntwo\n"},
		{argv: sh("exit 300"), code: 44},
		{argv: sh("false && echo no || echo yes"), stdout: "yes\n"},
		{argv: sh("true || echo no\necho after"), stdout: "after\n"},
		{argv: sh("set -e; false; echo no"), code: 1},
		{argv: sh("set -e; false || true; echo yes"), stdout: "yes\n"},
		{argv: sh(`echo "$HOME" '$HOME' \$HOME ${HOME}x`), stdout: "/root $HOME $HOME /rootx\n"},
		{argv: sh(`echo "a 'b' \"c\""`), stdout: `a 'b' "c"` + "\n"},
		{argv: sh("echo err >&2"), err: "err\n"},
		{argv: sh("# a comment\n\necho after # not this"), stdout: "after\n"},
		{argv: sh("cd /etc && cat motd && pwd"), stdout: "hello\n/etc\n"},
		{argv: sh("mkdir -p /workspace && cd /workspace || exit 1; pwd"), stdout: "/workspace\n"},
		{argv: []string{"mkdir", "-p"}, code: 1, err: "missing operand"},
		{argv: sh("sh /run.sh || echo $HOME"), stdout: "from file\n/root\n"},
		{argv: sh("cat"), stdin: "through", stdout: "through"},
		{argv: sh("echo a | cat"), code: 2, err: "simulated"},
		{argv: sh("echo a > /f"), code: 2, err: "simulated"},
		{argv: sh("echo $(true)"), code: 2, err: "simulated"},
		{argv: sh("echo 'open"), code: 2, err: "simulated"},
		{argv: sh("&& true"), code: 2, err: "simulated"},
		{argv: sh("missing-tool"), code: 127, err: "missing-tool: not found"},
		{argv: []string{"sh", "/none"}, code: 127, err: "can't open"},
		{argv: sh(`"$NOTHING" || echo empty`), stdout: "empty\n", err: "not found"},
		{argv: []string{"exit", "4"}, code: 4},
	} {
		var stdout, stderr bytes.Buffer
		status, err := simguest.Run(t.Context(), machine(nil), fleet.ExecSpec{Argv: test.argv}, fleet.Stdio{
			Stdin: strings.NewReader(test.stdin), Stdout: &stdout, Stderr: &stderr,
		})
		if err != nil || status.ExitCode != test.code || stdout.String() != test.stdout || !strings.Contains(stderr.String(), test.err) {
			t.Errorf("%q: code %d, stdout %q, stderr %q, %v", test.argv, status.ExitCode, stdout.String(), stderr.String(), err)
		}
	}
}

func TestEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		status, err := simguest.Run(t.Context(), machine(nil), fleet.ExecSpec{Argv: []string{"sh", "-c", "sleep 3600; echo no"}, Timeout: time.Minute}, fleet.Stdio{})
		if err != nil || status.ExitCode != 124 || !status.TimedOut || time.Since(begun) != time.Minute {
			t.Errorf("timeout: %+v, %v after %v", status, err, time.Since(begun))
		}

		stopped := make(chan struct{})
		time.AfterFunc(time.Minute, func() { close(stopped) })
		_, err = simguest.Run(t.Context(), machine(stopped), fleet.ExecSpec{Argv: []string{"sleep", "infinity"}}, fleet.Stdio{})
		if !errors.Is(err, simguest.ErrStopped) {
			t.Errorf("machine stops: %v", err)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, w := io.Pipe()
		defer w.Close()
		_, err = simguest.Run(ctx, machine(nil), fleet.ExecSpec{Argv: []string{"cat"}}, fleet.Stdio{Stdin: r})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("blocked on input: %v", err)
		}
		_, err = simguest.Run(ctx, machine(nil), fleet.ExecSpec{Argv: []string{"yes"}}, fleet.Stdio{Stdout: io.Discard})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("begun after the end: %v", err)
		}
	})
}

func TestBrokenOutputIsNoExitCode(t *testing.T) {
	r, w := io.Pipe()
	broken := errors.New("nobody listens")
	r.CloseWithError(broken)
	_, err := simguest.Run(t.Context(), machine(nil), fleet.ExecSpec{Argv: []string{"yes"}}, fleet.Stdio{Stdout: w})
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	_, err = simguest.Run(t.Context(), machine(nil), fleet.ExecSpec{}, fleet.Stdio{})
	if fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("empty command: %v", err)
	}
}

func TestFile(t *testing.T) {
	for _, path := range []string{"", "a", "/", "/a/../b", "/a/", "/a\x00", "//a"} {
		if _, err := simguest.File(fleet.GuestFile{Path: path}); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("%q: %v", path, err)
		}
	}
	for path, mode := range map[string]uint32{"/a": 0o644, "/fuse/a": 0o600, "/fused": 0o644} {
		if f, err := simguest.File(fleet.GuestFile{Path: path}); err != nil || f.Mode != mode {
			t.Errorf("%s: mode %o, %v", path, f.Mode, err)
		}
	}
}

func FuzzScript(f *testing.F) {
	f.Add("echo a && echo b || exit 1")
	f.Add(`echo "$A" '${B}' >&2 # c`)
	f.Fuzz(func(t *testing.T, script string) {
		if strings.Contains(script, "sleep") || strings.Contains(script, "yes") || strings.Contains(script, "seq") {
			return // they take their time
		}
		status, err := simguest.Run(t.Context(), machine(nil), fleet.ExecSpec{Argv: []string{"sh", "-c", script}}, fleet.Stdio{})
		if err != nil || status.ExitCode < 0 || status.ExitCode > 255 {
			t.Fatalf("%+v, %v", status, err)
		}
	})
}
