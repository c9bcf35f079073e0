package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

// program is the fuse under test.
var program string

// BinaryEnv names a binary to test instead of building one.
const BinaryEnv = "FUSE_CLUSTER_BINARY"

// Main builds fuse, with the build tags given, and runs the tests.
func Main(m *testing.M, tags ...string) {
	code, err := buildAndRun(m, tags)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M, tags []string) (code int, err error) {
	// For all tests of the process: one that sets it for itself cannot be parallel.
	if err := os.Setenv("TOKEN_ENCRYPTION_KEY", Key); err != nil {
		return 1, fmt.Errorf("set the key: %w", err)
	}
	if program = os.Getenv(BinaryEnv); program != "" {
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "fuse-cluster-*")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program = filepath.Join(dir, "fuse")
	root, err := testkit.ModuleRoot()
	if err != nil {
		return 1, err
	}
	cmd := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-buildvcs=false", "-tags", strings.Join(tags, ","), "-ldflags", "-s -w -X main.version=v-test", "-o", program, "./cmd/fuse")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build: %w\n%s", err, out)
	}
	return m.Run(), nil
}

// Process is a fuse process.
type Process struct {
	t    testing.TB
	cmd  *exec.Cmd
	out  *output
	done chan struct{} // closed when it has ended
}

// output keeps what a process prints and wakes those who wait for a text.
type output struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	wake chan struct{}
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf.Write(p)
	close(o.wake)
	o.wake = make(chan struct{})
	return len(p), nil
}

func (o *output) text() (string, chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String(), o.wake
}

// Start starts fuse. It is killed at the end of the test if it still runs.
func Start(t testing.TB, args ...string) *Process {
	t.Helper()
	p := &Process{t: t, out: &output{wake: make(chan struct{})}, done: make(chan struct{})}
	p.cmd = exec.CommandContext(context.Background(), program, args...)
	home := t.TempDir()
	p.cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+home, "HOME="+home)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is read from ProcessState
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			text, _ := p.out.text()
			t.Logf("output of fuse %s:\n%s", args[0], tail(text, 8000))
		}
	})
	return p
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// Run runs a fuse command to its end, with the token, and returns what it printed
// and its exit code.
func Run(t testing.TB, args ...string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+home, "HOME="+home, "FUSE_TOKEN="+Token)
	raw, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("fuse %s: %v", strings.Join(args, " "), err)
	}
	return string(raw), cmd.ProcessState.ExitCode()
}

// PID of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Output is what it has printed.
func (p *Process) Output() string {
	text, _ := p.out.text()
	return text
}

// Kill ends it with SIGKILL and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// Signal sends it a signal.
func (p *Process) Signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("signal %v: %v", sig, err)
	}
}

// Ended is closed when it has ended.
func (p *Process) Ended() <-chan struct{} { return p.done }

// Wait waits for its end and returns its exit code.
func (p *Process) Wait(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(within):
		p.t.Fatalf("the process has not ended within %v:\n%s", within, tail(p.Output(), 4000))
	}
	return p.cmd.ProcessState.ExitCode()
}

// Prints waits until it has printed text n times.
func (p *Process) Prints(text string, n int, within time.Duration) {
	p.t.Helper()
	late := time.After(within)
	for {
		out, wake := p.out.text()
		if strings.Count(out, text) >= n {
			return
		}
		select {
		case <-wake:
		case <-p.done:
			p.t.Fatalf("the process has ended without printing %q:\n%s", text, tail(out, 4000))
		case <-late:
			p.t.Fatalf("the process has not printed %q within %v:\n%s", text, within, tail(out, 4000))
		}
	}
}
