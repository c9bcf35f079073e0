package guestd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/testkit"
)

// Fifty megabytes of noise go in and come back, every byte, in both directions
// at once.
func TestBulkIsByteExact(t *testing.T) {
	t.Parallel()
	const size = 50 << 20
	g := startGuest(t)
	sent, got := sha256.New(), &counting{Hash: sha256.New()}
	noise := io.LimitReader(rand.NewChaCha8([32]byte{1, 2, 3}), size)
	st, err := g.Exec(t.Context(), fleet.ExecSpec{Argv: []string{"cat"}}, fleet.Stdio{Stdin: io.TeeReader(noise, sent), Stdout: got})
	if err != nil || st != (fleet.ExecStatus{}) {
		t.Fatalf("%+v, %v", st, err)
	}
	if got.n != size || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Errorf("%d bytes came back, of %d, and not all the same", got.n, size)
	}
	if got.largest > guestwire.MaxChunk {
		t.Errorf("a piece of %d bytes", got.largest)
	}
}

type counting struct {
	hash.Hash
	n, largest int
}

func (c *counting) Write(p []byte) (int, error) {
	c.n += len(p)
	c.largest = max(c.largest, len(p))
	return c.Hash.Write(p)
}

// A reader that stops holds the command up instead of filling memory.
func TestSlowReaderIsBounded(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	mark := fmt.Sprintf("bs=%d", 50000+rand.IntN(10000))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stuck := &stuckWriter{ctx: ctx}
	ended := make(chan error, 1)
	go func() {
		_, err := g.Exec(ctx, fleet.ExecSpec{Argv: []string{"dd", "if=/dev/zero", mark, "count=4000"}}, fleet.Stdio{Stdout: stuck})
		ended <- err
	}()
	var pid int
	testkit.Eventually(t, waitForGuest, "dd runs", func() bool { pid = findProcess(mark); return pid != 0 })
	var last int64
	quiet := 0
	testkit.Eventually(t, waitForGuest, "dd waits for its reader", func() bool {
		now := written(pid)
		if now == last && now > 0 {
			quiet++
		} else {
			quiet = 0
		}
		last = now
		return quiet > 60
	})
	if last > 2<<20 {
		t.Errorf("%d bytes were taken from the command for a reader that took none", last)
	}
	// Other calls are not held up by it.
	if st, err := g.Exec(t.Context(), sh("exit 6"), fleet.Stdio{}); err != nil || st.ExitCode != 6 {
		t.Errorf("beside it: %+v, %v", st, err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want the context's", err)
	}
	testkit.Eventually(t, waitForGuest, "dd is gone", func() bool { return findProcess(mark) == 0 })
}

// Commands that never read their input fill their own buffers and no other's.
func TestUnreadInputStarvesNobody(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	ctx, cancel := context.WithCancel(t.Context())
	mark := fmt.Sprintf("1%d", rand.Int64())
	var all sync.WaitGroup
	const commands = 60 // at 256 KiB each, more than a connection's usual window
	stuck := make(chan struct{}, commands)
	for range commands {
		all.Go(func() {
			in := &endless{stuck: stuck}
			if _, err := g.Exec(ctx, fleet.ExecSpec{Argv: []string{"sleep", mark}}, fleet.Stdio{Stdin: in}); !errors.Is(err, context.Canceled) {
				t.Errorf("error is %v, want the context's", err)
			}
		})
	}
	for range commands {
		<-stuck
	}
	in := strings.Repeat("x", 3<<20)
	var out bytes.Buffer
	if _, err := g.Exec(t.Context(), fleet.ExecSpec{Argv: []string{"cat"}}, fleet.Stdio{Stdin: strings.NewReader(in), Stdout: &out}); err != nil || out.String() != in {
		t.Errorf("%d of %d bytes came back: %v", out.Len(), len(in), err)
	}
	cancel()
	all.Wait()
	testkit.Eventually(t, waitForGuest, "the commands are gone", func() bool { return findProcess(mark) == 0 })
}

// endless is input without end, which tells when a pipe's and a stream's buffer
// must be nearly full of it.
type endless struct {
	n     int
	stuck chan<- struct{}
}

func (e *endless) Read(p []byte) (int, error) {
	e.n += len(p)
	if e.n == 4*guestwire.MaxChunk {
		e.stuck <- struct{}{}
	}
	return len(p), nil
}

type stuckWriter struct{ ctx context.Context }

func (w *stuckWriter) Write([]byte) (int, error) {
	<-w.ctx.Done()
	return 0, context.Cause(w.ctx)
}

func findProcess(arg string) int {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0
	}
	for _, f := range lines {
		if data, err := os.ReadFile(f); err == nil && strings.Contains(string(data), arg) {
			pid, _ := strconv.Atoi(strings.Split(f, "/")[2]) // the pattern has only digits there
			return pid
		}
	}
	return 0
}

// written is how many bytes a process has handed to write(2).
func written(pid int) int64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0
	}
	var n int64
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, "wchar: "); ok {
			n, _ = strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		}
	}
	return n
}

func TestExecStatus(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	tests := []struct {
		name   string
		spec   fleet.ExecSpec
		stdin  io.Reader
		want   fleet.ExecStatus
		stdout string
		stderr string
	}{
		{name: "success", spec: sh("echo out; echo err >&2"), stdout: "out\n", stderr: "err\n"},
		{name: "end of input", spec: sh("cat; echo end"), stdin: strings.NewReader("in\n"), stdout: "in\nend\n"},
		{name: "empty input", spec: sh("cat; echo end"), stdin: strings.NewReader(""), stdout: "end\n"},
		{name: "no input", spec: sh("cat; echo end"), stdout: "end\n"},
		{name: "exit code", spec: sh("exit 200"), want: fleet.ExecStatus{ExitCode: 200}},
		{name: "signal", spec: sh("kill -INT $$"), want: fleet.ExecStatus{ExitCode: 130, Signal: "INT"}},
		{name: "not found", spec: fleet.ExecSpec{Argv: []string{"nothing"}}, want: fleet.ExecStatus{ExitCode: 127}, stderr: "fused: cannot run nothing: not found\n"},
		{name: "not executable", spec: fleet.ExecSpec{Argv: []string{"/etc/passwd"}}, want: fleet.ExecStatus{ExitCode: 126}, stderr: "fused: cannot run /etc/passwd: permission denied\n"},
		{
			name: "user, directory, environment",
			spec: fleet.ExecSpec{Argv: []string{"sh", "-c", "id -u; pwd; echo \"$A\""}, User: "99", Cwd: "/tmp", Env: map[string]string{"A": "ä\nb"}}, stdout: "99\n/tmp\nä\nb\n",
		},
		{
			name: "the shortest timeout", spec: fleet.ExecSpec{Argv: []string{"sleep", "60"}, Timeout: 1},
			want: fleet.ExecStatus{ExitCode: 124, Signal: "KILL", TimedOut: true},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			got, err := g.Exec(t.Context(), tt.spec, fleet.Stdio{Stdin: tt.stdin, Stdout: &stdout, Stderr: &stderr})
			if err != nil || got != tt.want || stdout.String() != tt.stdout || stderr.String() != tt.stderr {
				t.Errorf("%+v, %v, stdout %q, stderr %q", got, err, stdout.String(), stderr.String())
			}
		})
	}
}

// What a command has written by the end of its time is not lost.
func TestTimeoutKeepsWhatWasWritten(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	begun := func(limit time.Duration) bool {
		var stdout bytes.Buffer
		got, err := g.Exec(t.Context(), fleet.ExecSpec{Argv: []string{"sh", "-c", "echo begun; exec sleep 600"}, Timeout: limit}, fleet.Stdio{Stdout: &stdout})
		if err != nil || got != (fleet.ExecStatus{ExitCode: 124, Signal: "KILL", TimedOut: true}) {
			t.Errorf("%+v, %v", got, err)
		}
		return stdout.String() == "begun\n"
	}
	longEnough(t, begun)
}

// longEnough tries with more and more time, of which a machine that is busy with
// others needs more to come as far as ok.
func longEnough(t *testing.T, ok func(limit time.Duration) bool) {
	t.Helper()
	for limit := 2 * time.Second; !ok(limit); limit *= 2 {
		if limit > waitForGuest {
			t.Fatalf("not within %v", limit)
		}
	}
}

func TestExecRefusals(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	for _, tt := range []struct {
		spec fleet.ExecSpec
		says string
	}{
		{fleet.ExecSpec{}, "name of a program"},
		{fleet.ExecSpec{Argv: []string{"x"}, User: "ghost"}, `user "ghost"`},
		{fleet.ExecSpec{Argv: []string{"x"}, Cwd: "/none"}, `working directory "/none"`},
	} {
		_, err := g.Exec(t.Context(), tt.spec, fleet.Stdio{})
		if fleet.CodeOf(err) != fleet.CodeInvalidArgument || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%+v: %v", tt.spec, err)
		}
	}
}

// However the caller goes, the command goes with it.
func TestCallerGoneKillsTheTree(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"cancel", "deadline", "connection"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			g := startGuest(t)
			if how != "deadline" {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				end, want := func() { cancel() }, context.Canceled
				if how == "connection" {
					want = fleet.ErrGuestUnavailable
					end = func() {
						if err := g.Close(); err != nil {
							t.Error(err)
						}
					}
				}
				if !g.leaves(ctx, t, end, want) {
					t.Error("the command never ran")
				}
				return
			}
			longEnough(t, func(limit time.Duration) bool {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				return g.leaves(ctx, t, func() {}, context.DeadlineExceeded)
			})
		})
	}
}

// leaves runs a tree of commands for a caller who goes once they run, and says
// whether they ran. The call ends with want, and the commands with it.
func (g *guest) leaves(ctx context.Context, t *testing.T, leave func(), want error) (ran bool) {
	t.Helper()
	mark := fmt.Sprintf("1%d", rand.Int64())
	ended := make(chan error, 1)
	in, feed := io.Pipe()
	defer feed.Close()
	go func() {
		_, err := g.Exec(ctx, sh("setsid sleep "+mark+" & sleep "+mark), fleet.Stdio{Stdin: in})
		ended <- err
	}()
	testkit.Eventually(t, 2*waitForGuest, "the command runs, or the caller's time is up", func() bool {
		ran = findProcess(mark) != 0
		return ran || ctx.Err() != nil
	})
	leave()
	if err := <-ended; !errors.Is(err, want) {
		t.Errorf("error is %v, want %v", err, want)
	}
	testkit.Eventually(t, waitForGuest, "the tree is gone", func() bool { return findProcess(mark) == 0 })
	return ran
}

func TestOwnWriterFails(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	full := errors.New("disk full")
	_, err := g.Exec(t.Context(), sh("echo x; sleep 60"), fleet.Stdio{Stdout: failing{full}})
	if !errors.Is(err, full) || errors.Is(err, fleet.ErrGuestUnavailable) {
		t.Errorf("error is %v, want the writer's own", err)
	}
}

// Input that breaks off ends the command; it is not told that this was all.
func TestBrokenInput(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	broken := errors.New("broken")
	for range 20 {
		file := filepath.Join(t.TempDir(), "believed")
		in := io.MultiReader(strings.NewReader("part"), failing{broken})
		_, err := g.Exec(t.Context(), sh("cat >/dev/null; echo all >"+file), fleet.Stdio{Stdin: in})
		if !errors.Is(err, broken) || errors.Is(err, fleet.ErrGuestUnavailable) {
			t.Errorf("error is %v, want the reader's own", err)
		}
		if _, err := os.Stat(file); err == nil {
			t.Error("the command took a part of its input for the whole")
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// What another build of the host might send is answered, not obeyed.
func TestExecProtocol(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	for name, m := range brokenStarts {
		stream := g.raw(t).Exec(t.Context())
		for _, msg := range m {
			if err := stream.Send(msg); err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
		}
		if err := stream.CloseRequest(); err != nil {
			t.Error(err)
		}
		if _, err := stream.Receive(); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
		_ = stream.CloseResponse()
	}
}
