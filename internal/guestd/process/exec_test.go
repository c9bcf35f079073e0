package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/testkit"
)

// eachRunner runs a test with both ways of holding a command's tree.
func eachRunner(t *testing.T, test func(t *testing.T, r *Runner)) {
	t.Helper()
	for _, mode := range []string{"cgroup", "scan"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Reaper: NewReaper(), Env: map[string]string{"IMAGE": "yes"}}
			if mode == "cgroup" {
				cfg.CgroupDir = mountCgroups(t)
			}
			r, err := NewRunner(cfg)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				r.Close()
				cfg.Reaper.Wait()
				if cfg.CgroupDir == "" {
					return
				}
				testkit.Eventually(t, patience, "the cgroups of ended commands are removed", func() bool {
					r.groups.close()
					_, err := os.Stat(cfg.CgroupDir)
					return os.IsNotExist(err)
				})
			})
			test(t, r)
		})
	}
}

func run(t *testing.T, r *Runner, spec fleet.ExecSpec, stdin string) (fleet.ExecStatus, string, string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	stdio := IO{Stdout: &stdout, Stderr: &stderr}
	if stdin != "" {
		stdio.Stdin = io.NopCloser(strings.NewReader(stdin))
	}
	status, err := r.Run(t.Context(), spec, stdio, nil)
	if err != nil {
		t.Fatalf("run %q: %v", spec.Argv, err)
	}
	return status, stdout.String(), stderr.String()
}

func sh(script string) fleet.ExecSpec { return fleet.ExecSpec{Argv: []string{"sh", "-c", script}} }

func TestExitCodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain, script, broken := filepath.Join(dir, "plain"), filepath.Join(dir, "script"), filepath.Join(dir, "broken")
	for path, mode := range map[string]os.FileMode{plain: 0o644, broken: 0o755} {
		if err := os.WriteFile(path, []byte("\x00\x01nothing that runs"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(script, []byte("#!/nonexistent/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "found"), []byte("#!/bin/sh\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"PATH": dir}
	tests := []struct {
		name string
		spec fleet.ExecSpec
		want fleet.ExecStatus
	}{
		{"success", sh("exit 0"), fleet.ExecStatus{}},
		{"failure", sh("exit 42"), fleet.ExecStatus{ExitCode: 42}},
		{"own 255", sh("exit 255"), fleet.ExecStatus{ExitCode: 255}},
		{"not in PATH", fleet.ExecSpec{Argv: []string{"no-such-program"}}, fleet.ExecStatus{ExitCode: 127}},
		{"no such path", fleet.ExecSpec{Argv: []string{"/no/such/program"}}, fleet.ExecStatus{ExitCode: 127}},
		{"a file in the way", fleet.ExecSpec{Argv: []string{plain + "/program"}}, fleet.ExecStatus{ExitCode: 127}},
		{"no such interpreter", fleet.ExecSpec{Argv: []string{script}}, fleet.ExecStatus{ExitCode: 127}},
		{"not executable", fleet.ExecSpec{Argv: []string{plain}}, fleet.ExecStatus{ExitCode: 126}},
		{"not executable in PATH", fleet.ExecSpec{Argv: []string{"plain"}, Env: env}, fleet.ExecStatus{ExitCode: 126}},
		{"no program", fleet.ExecSpec{Argv: []string{broken}}, fleet.ExecStatus{ExitCode: 126}},
		{"a directory", fleet.ExecSpec{Argv: []string{dir}}, fleet.ExecStatus{ExitCode: 126}},
		{"the caller's PATH", fleet.ExecSpec{Argv: []string{"found"}, Env: env}, fleet.ExecStatus{ExitCode: 3}},
		{"relative path", fleet.ExecSpec{Argv: []string{"./found"}, Cwd: dir}, fleet.ExecStatus{ExitCode: 3}},
		{"signal", sh("kill -TERM $$"), fleet.ExecStatus{ExitCode: 143, Signal: "TERM"}},
		{"kill", sh("kill -KILL $$"), fleet.ExecStatus{ExitCode: 137, Signal: "KILL"}},
		{"fault", sh("kill -SEGV $$"), fleet.ExecStatus{ExitCode: 139, Signal: "SEGV"}},
	}
	eachRunner(t, func(t *testing.T, r *Runner) {
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				got, stdout, stderr := run(t, r, tt.spec, "")
				if got != tt.want {
					t.Errorf("status is %+v, want %+v", got, tt.want)
				}
				if explained := strings.HasPrefix(stderr, "fused: cannot run "); explained != (got.ExitCode == 126 || got.ExitCode == 127) {
					t.Errorf("standard error is %q", stderr)
				}
				if stdout != "" {
					t.Errorf("standard output is %q", stdout)
				}
			})
		}
	})
}

func TestRefusedSpecs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, says string
		spec       fleet.ExecSpec
	}{
		{"no argv", "name of a program", fleet.ExecSpec{}},
		{"empty name", "name of a program", fleet.ExecSpec{Argv: []string{""}}},
		{"NUL in an argument", "NUL", fleet.ExecSpec{Argv: []string{"sh", "a\x00b"}}},
		{"variable without a name", "environment variable", fleet.ExecSpec{Argv: []string{"sh"}, Env: map[string]string{"": "x"}}},
		{"variable with =", "environment variable", fleet.ExecSpec{Argv: []string{"sh"}, Env: map[string]string{"A=B": "x"}}},
		{"NUL in a variable", "environment variable", fleet.ExecSpec{Argv: []string{"sh"}, Env: map[string]string{"A": "\x00"}}},
		{"relative directory", "absolute", fleet.ExecSpec{Argv: []string{"sh"}, Cwd: "tmp"}},
		{"missing directory", "no such file", fleet.ExecSpec{Argv: []string{"sh"}, Cwd: "/no/such/dir"}},
		{"file for a directory", "not a directory", fleet.ExecSpec{Argv: []string{"sh"}, Cwd: "/etc/passwd"}},
		{"unknown user", "/etc/passwd", fleet.ExecSpec{Argv: []string{"sh"}, User: "nobody-at-all"}},
		{"unknown group", "/etc/group", fleet.ExecSpec{Argv: []string{"sh"}, User: "0:no-such-group"}},
		{"negative uid", "/etc/passwd", fleet.ExecSpec{Argv: []string{"sh"}, User: "-1"}},
		{"highest uid", "/etc/passwd", fleet.ExecSpec{Argv: []string{"sh"}, User: "4294967295"}},
		{"negative timeout", "negative", fleet.ExecSpec{Argv: []string{"sh"}, Timeout: -1}},
		{"too long", "longer than the guest's kernel takes", fleet.ExecSpec{Argv: []string{"sh", strings.Repeat("x", 200<<10)}}},
	}
	eachRunner(t, func(t *testing.T, r *Runner) {
		for _, tt := range tests {
			_, err := r.Run(t.Context(), tt.spec, IO{Stdout: io.Discard, Stderr: io.Discard}, nil)
			if fleet.CodeOf(err) != fleet.CodeInvalidArgument || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: error is %v, want an invalid argument that says %q", tt.name, err, tt.says)
			}
		}
	})
}

func TestStreams(t *testing.T) {
	t.Parallel()
	eachRunner(t, func(t *testing.T, r *Runner) {
		if _, out, errs := run(t, r, sh("cat; echo done >&2"), "line\n"); out != "line\n" || errs != "done\n" {
			t.Errorf("stdout %q, stderr %q", out, errs)
		}
		if _, out, _ := run(t, r, sh("cat; echo end"), ""); out != "end\n" {
			t.Errorf("without standard input: %q", out)
		}
		// A command that does not read its input ends all the same.
		big := strings.Repeat("x", 1<<20)
		if st, _, _ := run(t, r, sh("exit 5"), big); st.ExitCode != 5 {
			t.Errorf("unread input: %+v", st)
		}
		// What is left in the pipe when the command ends is not lost.
		if _, out, _ := run(t, r, sh("head -c 60000 /dev/zero"), ""); len(out) != 60000 {
			t.Errorf("output of %d bytes, want 60000", len(out))
		}
		if st, err := r.Run(t.Context(), sh("echo nobody listens; exit 4"), IO{}, nil); err != nil || st.ExitCode != 4 {
			t.Errorf("without writers: %+v, %v", st, err)
		}
	})
}

func TestIdentity(t *testing.T) {
	t.Parallel()
	eachRunner(t, func(t *testing.T, r *Runner) {
		tests := []struct{ user, script, want string }{
			{"", "id -u; id -g; echo $HOME $USER", "0\n0\n/root root\n"},
			{"root", "id -u; echo $IMAGE", "0\nyes\n"},
			{"nobody", "id -un; id -gn; echo $HOME $LOGNAME", "nobody\nnogroup\n/nonexistent nobody\n"},
			{"1234", "id -u; id -g; id -G; echo $HOME$USER", "1234\n0\n0\n/\n"},
			{"1234:4321", "id -u; id -g; id -G", "1234\n4321\n4321\n"},
			{"daemon:adm", "id -un; id -gn; id -Gn", "daemon\nadm\nadm\n"},
		}
		for _, tt := range tests {
			spec := sh(tt.script)
			spec.User = tt.user
			if _, out, errs := run(t, r, spec, ""); out != tt.want {
				t.Errorf("user %q: %q, want %q (%s)", tt.user, out, tt.want, errs)
			}
		}
		dir := t.TempDir()
		spec := fleet.ExecSpec{Argv: []string{"sh", "-c", "pwd; echo $A-$IMAGE; umask"}, Cwd: dir, Env: map[string]string{"A": "1 2", "IMAGE": "mine"}}
		if _, out, _ := run(t, r, spec, ""); out != dir+"\n1 2-mine\n0022\n" {
			t.Errorf("directory and environment: %q", out)
		}
	})
}

// defaultSignals reads the blocked and ignored signals of /proc/PID/status. 32
// and 33 are glibc's own: what posix_spawn starts, make's children among them,
// ignores them and hands that down.
func defaultSignals(status string) bool {
	const glibc = 1<<31 | 1<<32
	var blocked, ignored uint64
	n, err := fmt.Sscanf(status, "SigBlk:\t%x\nSigIgn:\t%x\n", &blocked, &ignored)
	return err == nil && n == 2 && blocked == 0 && ignored&^glibc == 0
}

// A command gets a session of its own, default signals, and no descriptor but
// its three and what the agent itself was started with.
func TestIsolation(t *testing.T) {
	t.Parallel()
	descriptors := []string{"sh", "-c", `ls /proc/$$/fd`}
	// Without a shell, which blocks signals for a moment as it starts programs.
	signals := []string{"grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"}
	plain := exec.Command(descriptors[0], descriptors[1:]...)
	want, err := plain.Output()
	if err != nil {
		t.Fatal(err)
	}
	eachRunner(t, func(t *testing.T, r *Runner) {
		if _, out, _ := run(t, r, fleet.ExecSpec{Argv: descriptors}, "x"); out != string(want) {
			t.Errorf("the command has descriptors %q, want %q", out, want)
		}
		if _, out, _ := run(t, r, fleet.ExecSpec{Argv: signals}, ""); !defaultSignals(out) {
			t.Errorf("the command's signals are %q", out)
		}
		if _, out, _ := run(t, r, sh(`set -- $(cat /proc/$$/stat); [ $6 = $$ ] && echo own session`), ""); out != "own session\n" {
			t.Errorf("the command is in another's session: %q", out)
		}
	})
}

// A timeout and a caller that goes away kill the whole tree, daemons that have
// left session and parent included.
func TestKillsTheTree(t *testing.T) {
	t.Parallel()
	eachRunner(t, func(t *testing.T, r *Runner) {
		t.Run("cancel", func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if up, _, err := tree(ctx, t, r, 0, cancel); !up || !errors.Is(err, context.Canceled) {
				t.Errorf("up: %v; error is %v, want the context's", up, err)
			}
		})
		t.Run("timeout", func(t *testing.T) {
			// A machine that is busy with others needs longer for the tree.
			for limit := 3 * time.Second; limit < 2*patience; limit *= 2 {
				up, got, err := tree(t.Context(), t, r, limit, func() {})
				if err != nil || got != (fleet.ExecStatus{ExitCode: 124, Signal: "KILL", TimedOut: true}) {
					t.Errorf("timed out: %+v, %v", got, err)
				}
				if up {
					return
				}
			}
			t.Error("the tree never came up")
		})
	})
}

// tree runs a tree of commands, has it ended once it is up, and waits until it is
// gone.
func tree(ctx context.Context, t *testing.T, r *Runner, timeout time.Duration, end func()) (up bool, status fleet.ExecStatus, err error) {
	t.Helper()
	mark := fmt.Sprintf("1%d", time.Now().UnixNano())
	// sleep is the direct child, a background child, a setsid child,
	// and a double-forked orphan in a session of its own.
	spec := sh(fmt.Sprintf(`s=%s; sleep $s & setsid sleep $s & (setsid sh -c "sleep $s & sleep $s" & ) ; sleep $s`, mark))
	spec.Timeout = timeout
	ended := make(chan struct{})
	go func() {
		status, err = r.Run(ctx, spec, IO{Stdout: io.Discard, Stderr: io.Discard}, nil)
		close(ended)
	}()
	testkit.Eventually(t, 3*patience, "the tree is up, or its time", func() bool {
		// Six: the script too has the mark in its command line, twice.
		if up = len(withArg(t, mark)) >= 6; up {
			return true
		}
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	end()
	began := time.Now()
	<-ended
	if took := time.Since(began); took > timeout+patience/2 {
		t.Errorf("it took %v", took)
	}
	testkit.Eventually(t, patience, "the tree is gone", func() bool { return len(withArg(t, mark)) == 0 })
	return up, status, err
}

// A background process neither holds the command up nor dies with it, and may
// go on writing.
func TestBackgroundProcessSurvives(t *testing.T) {
	t.Parallel()
	eachRunner(t, func(t *testing.T, r *Runner) {
		file := filepath.Join(t.TempDir(), "alive")
		script := `(while sleep 0.05; do echo chatter; echo x >>` + file + `; done) & echo $!`
		began := time.Now()
		_, out, _ := run(t, r, sh(script), "")
		if took := time.Since(began); took > patience {
			t.Errorf("the command was held up for %v", took)
		}
		var pid int
		if _, err := fmt.Sscan(out, &pid); err != nil {
			t.Fatalf("output %q: %v", out, err)
		}
		size := func() int64 {
			info, err := os.Stat(file)
			if err != nil {
				return 0
			}
			return info.Size()
		}
		was := size()
		testkit.Eventually(t, patience, "the background process writes on", func() bool { return size() > was+6 })
		killScan(pid, "no marker", time.Now().Add(patience))
	})
}

// A writer that takes its time gets every byte, and holds no more than a chunk.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	eachRunner(t, func(t *testing.T, r *Runner) {
		w := &slowWriter{gate: make(chan struct{}), ended: t.Context().Done()}
		done := make(chan error, 1)
		go func() {
			_, err := r.Run(t.Context(), sh("head -c 1000000 /dev/zero"), IO{Stdout: w}, nil)
			done <- err
		}()
		for {
			select {
			case w.gate <- struct{}{}:
				continue
			case err := <-done:
				if err != nil || w.total != 1000000 || w.largest > ChunkSize {
					t.Errorf("%v: %d bytes, the largest piece %d", err, w.total, w.largest)
				}
			}
			return
		}
	})
}

type slowWriter struct {
	gate           chan struct{}
	ended          <-chan struct{}
	total, largest int
}

func (w *slowWriter) Write(p []byte) (int, error) {
	select {
	case <-w.gate:
	case <-w.ended:
		return 0, context.Canceled
	}
	w.total += len(p)
	w.largest = max(w.largest, len(p))
	return len(p), nil
}

func TestWriterThatFails(t *testing.T) {
	t.Parallel()
	eachRunner(t, func(t *testing.T, r *Runner) {
		broken := errors.New("broken")
		_, err := r.Run(t.Context(), sh("head -c 300000 /dev/zero"), IO{Stdout: failingWriter{broken}}, nil)
		if !errors.Is(err, broken) {
			t.Errorf("error is %v, want the writer's", err)
		}
	})
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

func TestTasksLeftToTheAgent(t *testing.T) {
	for _, test := range []struct{ threads, pids, want int }{
		{1564, 32768, 1308}, {200000, 32768, 32512}, {1564, 0, 1308}, {300, 32768, 150},
	} {
		if got := tasksFor(test.threads, test.pids); got != test.want {
			t.Errorf("of %d threads and %d pids: %d, want %d", test.threads, test.pids, got, test.want)
		}
	}
}

func TestTooManyCommands(t *testing.T) {
	t.Parallel()
	r, err := NewRunner(Config{Reaper: NewReaper()})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range MaxRunning {
		r.slots <- struct{}{}
	}
	_, err = r.Run(t.Context(), sh("exit 0"), IO{}, nil)
	if fleet.CodeOf(err) != fleet.CodeUnavailable || !strings.Contains(err.Error(), "256") {
		t.Errorf("error is %v, want one that names the limit", err)
	}
}
