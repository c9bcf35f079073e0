package hostd_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/hostd/sim"
)

// get asks the agent's handler for a page.
func (r *rig) get(path, token string) (status int, body string) {
	r.t.Helper()
	req := httptest.NewRequestWithContext(r.t.Context(), http.MethodGet, path, nil)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, req)
	return w.Code, w.Body.String()
}

func TestSweepIsLoggedAndMeasured(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		r.mustCreate(ref("vm", "u1"))
		objects := filepath.Join(r.dir, "objects")
		if err := errors.Join(os.WriteFile(filepath.Join(objects, "slot-7"), nil, 0o600), os.WriteFile(filepath.Join(objects, "stranger"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		elapse(61 * time.Second)
		r.wantLeft("u1", "slot-1", "stranger")
		status, page := r.get("/metrics", r.cfg.Token)
		for _, want := range []string{
			`fuse_hostd_swept_objects_total{kind="file"} 1`, `fuse_hostd_unknown_objects{kind="file"} 1`,
			`fuse_hostd_vms{phase="running"} 1`, `fuse_hostd_operations_total{code="ok",verb="create"} 1`,
		} {
			if status != http.StatusOK || !strings.Contains(page, want) {
				t.Errorf("status %d, no %s", status, want)
			}
		}
	})
}

func TestOpenPages(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		for _, test := range []struct {
			path, token string
			status      int
		}{
			{"/livez", "", http.StatusOK},
			{"/metrics", "", http.StatusUnauthorized},
			{"/metrics", "a-token-of-17-bytes", http.StatusUnauthorized},
			{"/nothing", "", http.StatusUnauthorized},
			{"/nothing", r.cfg.Token, http.StatusNotFound},
			{"/fuse.host.v1.VM/ListVMs", "", http.StatusUnauthorized},
		} {
			status, body := r.get(test.path, test.token)
			if status != test.status || test.path == "/livez" && body != "" {
				t.Errorf("%s with %q: %d %q", test.path, test.token, status, body)
			}
		}
	})
}

// TestNewLivesWaitForTheSweep covers the moment between the list that a sweep
// goes by and its end: a VM made in it would look like a leftover.
func TestNewLivesWaitForTheSweep(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		r.mustCreate(ref("old", "u1"))
		r.drv.SetDelay("sweep", sim.Range{Min: 10 * time.Second, Max: 10 * time.Second})
		elapse(61 * time.Second) // a sweep is under way
		begun := time.Now()
		created := make(chan error, 1)
		go func() { created <- r.create(ref("new", "u2")) }()
		synctest.Wait()
		r.mustDestroy(ref("old", "u1")) // does not wait
		if took := time.Since(begun); took != 0 {
			t.Errorf("a destroy waited %v for the sweep", took)
		}
		if err := <-created; err != nil || time.Since(begun) != 9*time.Second {
			t.Errorf("create: %v after %v", err, time.Since(begun))
		}
		elapse(time.Minute)
		r.wantLeft("u2", "slot-1")
	})
}

// TestStuckSweepIsGivenUp bounds how long new lives wait.
func TestStuckSweepIsGivenUp(t *testing.T) {
	bubble(t, sim.Options{Delay: map[string]sim.Range{"sweep": {Min: time.Hour, Max: time.Hour}}}, func(t *testing.T, r *rig) {
		begun := time.Now()
		r.mustCreate(ref("vm", "u1"))
		if took := time.Since(begun); took != 30*time.Second {
			t.Errorf("the create waited %v", took)
		}
	})
}
