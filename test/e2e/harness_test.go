package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// bins are the binaries under test, built once: fuse as it ships, and fuse
// with failpoints compiled in.
var bins struct{ dir, fuse, failing string }

// TestMain builds the binaries.
func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	bins.dir, err = os.MkdirTemp("", "fuse-e2e-*")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(bins.dir)) }()
	bins.fuse = filepath.Join(bins.dir, "fuse")
	bins.failing = filepath.Join(bins.dir, "fuse-failing")
	for _, b := range [][]string{
		{"-o", bins.fuse, "./cmd/fuse"},
		{"-o", bins.failing, "-tags", "failpoints", "./cmd/fuse"},
		{"-o", filepath.Join(bins.dir, "fused"), "./cmd/fused"},
	} {
		cmd := exec.Command("go", append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version=v-e2e"}, b...)...)
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("build %s: %w\n%s", b, err, out)
		}
	}
	return m.Run(), nil
}

// daemon is a fuse process that this test started.
type daemon struct {
	t    testing.TB
	cmd  *exec.Cmd
	url  string
	dir  string
	home string
	out  *watched
	done chan struct{} // closed when the process has ended
}

// watched keeps what a process prints and wakes those who wait for a line.
type watched struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	wake chan struct{}
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(p)
	close(w.wake)
	w.wake = make(chan struct{})
	return len(p), nil
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// line waits for the first whole line with the prefix and returns what follows it.
func (w *watched) line(ctx context.Context, prefix string) (string, bool) {
	for {
		w.mu.Lock()
		text, wake := w.buf.String(), w.wake
		w.mu.Unlock()
		for l := range strings.Lines(text) {
			if rest, ok := strings.CutPrefix(l, prefix); ok && strings.HasSuffix(l, "\n") {
				return strings.TrimRight(rest, "\r\n"), true
			}
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return "", false
		}
	}
}

// start starts a fuse daemon; dir is its data directory, home the directory of
// its configuration. It is killed at the end of the test if it still runs.
func start(t testing.TB, bin, dir string, env []string, args ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, dir: dir, home: filepath.Join(dir, "home"), out: &watched{wake: make(chan struct{})}, done: make(chan struct{})}
	owns(t, dir)
	d.cmd = exec.Command(bin, args...)
	d.cmd.Env = append(append(os.Environ(), "XDG_CONFIG_HOME="+d.home, "HOME="+d.home), env...)
	d.cmd.Stdout, d.cmd.Stderr = d.out, d.out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = d.cmd.Wait() // how it ended is read from ProcessState
		close(d.done)
	}()
	t.Cleanup(func() {
		d.kill()
		if t.Failed() {
			t.Logf("output of %s:\n%s\n%s", strings.Join(args, " "), d.out, d.log())
		}
	})
	return d
}

// log is the end of the daemon's log file, if it has one.
func (d *daemon) log() string {
	raw, err := os.ReadFile(filepath.Join(d.dir, "fuse.log"))
	if err != nil {
		return ""
	}
	return string(raw[max(0, len(raw)-8000):])
}

// dev starts fuse dev and waits until it is ready.
func dev(t testing.TB, bin, dir string, env []string, args ...string) *daemon {
	t.Helper()
	d := devNoWait(t, bin, dir, env, args...)
	if !d.waitReady() {
		t.Fatalf("fuse dev is not ready:\n%s", d.out)
	}
	return d
}

func devNoWait(t testing.TB, bin, dir string, env []string, args ...string) *daemon {
	t.Helper()
	return start(t, bin, dir, env, append([]string{"dev", "--data-dir", dir, "--listen", "127.0.0.1:0", "--golden-disk-gb", "0"}, args...)...)
}

// waitReady waits for the daemon's ready line; false if the process ended.
func (d *daemon) waitReady() bool {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	go func() {
		select {
		case <-d.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	serving, ok := d.out.line(ctx, "serving ")
	if !ok {
		return false
	}
	d.url, _, _ = strings.Cut(serving, ",")
	_, ok = d.out.line(ctx, "ready.")
	return ok
}

// kill ends the process with SIGKILL and waits for its end.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill() // it may have ended
	<-d.done
}

// endsAt waits until the process has been ended by the failpoint that it was
// started with.
func (d *daemon) endsAt(point string) {
	d.t.Helper()
	select {
	case <-d.done:
	case <-time.After(2 * time.Minute):
		d.t.Fatalf("the failpoint %s was never met", point)
	}
}

// stop asks the process to end and reports how long that took.
func (d *daemon) stop() time.Duration {
	d.t.Helper()
	begin := time.Now()
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		d.t.Fatal(err)
	}
	select {
	case <-d.done:
	case <-time.After(time.Minute):
		d.t.Fatal("the process does not end after SIGTERM")
	}
	if code := d.cmd.ProcessState.ExitCode(); code != 0 {
		d.t.Errorf("exit code %d after SIGTERM", code)
	}
	return time.Since(begin)
}

// outcome is what a command left.
type outcome struct {
	code     int
	out, err string
}

// fuse runs the command line against the daemon through the context that it
// wrote, as a user in a second terminal does.
func (d *daemon) fuse(args ...string) outcome {
	d.t.Helper()
	return d.fuseIn("", args...)
}

func (d *daemon) fuseIn(stdin string, args ...string) outcome {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute) // longer than any bound that a test gives a command
	defer cancel()
	cmd := exec.CommandContext(ctx, bins.fuse, args...)
	cmd.Env = append(os.Environ(), "XDG_CONFIG_HOME="+d.home, "HOME="+d.home)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		d.t.Fatalf("fuse %s: %v", strings.Join(args, " "), err)
	}
	return outcome{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// must runs the command line and fails the test unless it exits with 0.
func (d *daemon) must(args ...string) string {
	d.t.Helper()
	o := d.fuse(args...)
	if o.code != 0 {
		d.t.Fatalf("fuse %s: exit code %d\n%s%s", strings.Join(args, " "), o.code, o.out, o.err)
	}
	return o.out
}

// ids lists the environments that the server knows.
func (d *daemon) ids() []string { return strings.Fields(d.must("ls", "-o", "name")) }

// token is the API token that the daemon made.
func (d *daemon) token() string {
	d.t.Helper()
	raw, err := os.ReadFile(filepath.Join(d.dir, "token"))
	if err != nil {
		d.t.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// answer is an HTTP answer read whole.
type answer struct {
	status int
	header http.Header
	body   map[string]any
	raw    string
}

// http makes one request to the API; an error means that no answer came.
func (d *daemon) http(method, path, body string, header ...string) (answer, error) {
	req, err := http.NewRequest(method, d.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+d.token())
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := (&http.Client{Timeout: 5 * time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{status: resp.StatusCode, header: resp.Header, raw: string(raw)}
	_ = json.Unmarshal(raw, &a.body) // not every answer is JSON
	return a, nil
}

// create makes an environment by the API; if no 201 came the error says what did.
func (d *daemon) create(task string) error {
	a, err := d.http(http.MethodPost, "/v1/environments", fmt.Sprintf(`{"task_id":%q,"spec":{"cpus":1,"ram_mb":128,"storage_gb":1}}`, task))
	if err == nil && a.status != http.StatusCreated {
		err = fmt.Errorf("status %d: %s", a.status, a.raw)
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", task, err)
	}
	return nil
}

// gone waits until the server lists no environments.
func (d *daemon) gone(within time.Duration) {
	d.t.Helper()
	testkit.Eventually(d.t, within, "no environment is listed", func() bool { return len(d.ids()) == 0 })
}
