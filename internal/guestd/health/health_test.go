package health

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func TestVerdicts(t *testing.T) {
	spec := fleet.HealthcheckSpec{Exec: []string{"x"}, Retries: 2, StartPeriodSeconds: 20, IntervalSeconds: 10}
	m := newMachine(spec, noon)
	for i, step := range []struct {
		problem string
		want    fleet.HealthStatus
	}{
		{"not yet", fleet.HealthStatus{State: fleet.HealthStarting, Since: noon, Message: "not yet"}},
		{"nor now", fleet.HealthStatus{State: fleet.HealthStarting, Since: noon, Message: "nor now"}},
		{"late", fleet.HealthStatus{State: fleet.HealthStarting, Since: noon, Failures: 1, Message: "late"}}, // at 20 s they count
		{"", fleet.HealthStatus{State: fleet.HealthPassing, Since: noon.Add(30 * time.Second)}},
		{"", fleet.HealthStatus{State: fleet.HealthPassing, Since: noon.Add(30 * time.Second)}},
		{"a", fleet.HealthStatus{State: fleet.HealthPassing, Since: noon.Add(30 * time.Second), Failures: 1, Message: "a"}},
		{"b", fleet.HealthStatus{State: fleet.HealthFailing, Since: noon.Add(60 * time.Second), Failures: 2, Message: "b"}},
		{"c", fleet.HealthStatus{State: fleet.HealthFailing, Since: noon.Add(60 * time.Second), Failures: 3, Message: "c"}},
		{"", fleet.HealthStatus{State: fleet.HealthPassing, Since: noon.Add(80 * time.Second)}},
	} {
		got := m.attempt(noon.Add(time.Duration(i)*10*time.Second), step.problem)
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("step %d: %s", i, diff)
		}
	}
}

func TestDefaults(t *testing.T) {
	m := newMachine(fleet.HealthcheckSpec{}, noon)
	if m.interval != 10*time.Second || m.timeout != 2*time.Second || m.retries != 3 || !m.counts.Equal(noon) {
		t.Errorf("%+v", m)
	}
	if m := newMachine(fleet.HealthcheckSpec{IntervalSeconds: 1, TimeoutSeconds: 5}, noon); m.timeout != time.Second {
		t.Errorf("the timeout is longer than the interval: %+v", m)
	}
}

func ask(t *testing.T, dir string, spec fleet.HealthcheckSpec) {
	t.Helper()
	doc, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "healthcheck.json"), doc, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Until a probe has said something, what another one said before is no verdict:
// one that hangs would otherwise pass for as long as it hangs.
func TestAnOldVerdictIsNone(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ask(t, dir, fleet.HealthcheckSpec{Exec: []string{"probe"}})
		if err := os.WriteFile(filepath.Join(dir, "health.json"), []byte(`{"state":"passing"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		r := New(dir, func(ctx context.Context, _ []string, _ time.Duration) (int, string, error) {
			<-ctx.Done()
			return 0, "", ctx.Err()
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { r.Run(ctx); close(done) }()
		synctest.Wait()
		if v := r.Verdict(); v == nil || v.State != fleet.HealthStarting {
			t.Errorf("during the first try: %+v", v)
		}
		cancel()
		<-done
	})
}

// A probe begins when it is written, goes on at its interval, and another one
// takes its place.
func TestARunnerFollowsItsFile(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var tries, exit atomic.Int64
		r := New(dir, func(_ context.Context, argv []string, timeout time.Duration) (int, string, error) {
			tries.Add(1)
			if argv[0] != "probe" || timeout != 2*time.Second {
				t.Errorf("%v within %s", argv, timeout)
			}
			if exit.Load() < 0 {
				return 0, "", errors.New("no room for a command")
			}
			return int(exit.Load()), "said so\n", nil
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { r.Run(ctx); close(done) }()
		wait := func(d time.Duration) {
			<-time.NewTimer(d).C
			synctest.Wait()
		}
		wait(time.Minute)
		if r.Verdict() != nil || tries.Load() > 0 {
			t.Error("a verdict without a probe")
		}
		ask(t, dir, fleet.HealthcheckSpec{Exec: []string{"probe"}, IntervalSeconds: 5, Retries: 2})
		r.Changed()
		wait(time.Second)
		if v := r.Verdict(); v == nil || v.State != fleet.HealthPassing || tries.Load() != 1 {
			t.Errorf("%+v after %d tries", v, tries.Load())
		}
		exit.Store(3)
		wait(5 * time.Second)
		r.Changed() // other files: the probe goes on as it was
		wait(5 * time.Second)
		if v := r.Verdict(); v.State != fleet.HealthFailing || v.Failures != 2 || v.Message != "exit code 3: said so" || tries.Load() != 3 {
			t.Errorf("%+v after %d tries", v, tries.Load())
		}
		exit.Store(-1)
		wait(5 * time.Second)
		if v := r.Verdict(); v.Message != "no room for a command" {
			t.Errorf("%+v", v)
		}
		exit.Store(0)
		ask(t, dir, fleet.HealthcheckSpec{Exec: []string{"probe"}, IntervalSeconds: 60})
		r.Changed()
		wait(time.Second)
		if v := r.Verdict(); v.State != fleet.HealthPassing || tries.Load() != 5 {
			t.Errorf("%+v after %d tries", v, tries.Load())
		}
		for _, bad := range []string{"{}", "x", `{"exec":["a"],"http":{"port":1}}`} {
			if err := os.WriteFile(r.configPath(), []byte(bad), 0o600); err != nil {
				t.Fatal(err)
			}
			r.Changed()
			wait(5 * time.Minute)
		}
		if n := tries.Load(); n != 5 {
			t.Errorf("%d tries of no probe", n-5)
		}
		cancel()
		<-done
	})
}

func TestHTTP(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		if err != nil {
			code = 299
		}
		w.Header().Set("Location", "/500")
		w.WriteHeader(code)
	}))
	defer srv.Close()
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	r := New(t.TempDir(), nil, slog.New(slog.DiscardHandler))
	for path, passes := range map[string]bool{"": true, "/200": true, "/302": true, "/399": true, "/400": false, "/503": false} {
		problem := r.try(t.Context(), fleet.HealthcheckSpec{HTTP: &fleet.HealthcheckHTTP{Port: port, Path: path}}, time.Minute)
		if passes != (problem == "") {
			t.Errorf("%q: %q", path, problem)
		}
	}
	srv.Close()
	if problem := r.try(t.Context(), fleet.HealthcheckSpec{HTTP: &fleet.HealthcheckHTTP{Port: port}}, time.Minute); problem == "" {
		t.Error("nobody listens, and it passes")
	}
}

// What lies in place of a file neither holds the reader up nor fills memory.
func TestOnlyFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	r := New(dir, nil, slog.New(slog.DiscardHandler))
	ask(t, dir, fleet.HealthcheckSpec{Exec: []string{"x"}})
	if err := syscall.Mkfifo(r.statePath(), 0o600); err != nil {
		t.Fatal(err)
	}
	if v := r.Verdict(); v != nil {
		t.Errorf("a pipe says %+v", v)
	}
	if err := os.Remove(r.statePath()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.statePath(), append([]byte(`{"state":"passing"}`), make([]byte, maxFile)...), 0o600); err != nil {
		t.Fatal(err)
	}
	if v := r.Verdict(); v != nil {
		t.Errorf("a huge file says %+v", v)
	}
}
