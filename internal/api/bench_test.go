package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/state"
)

const benchFleet = 10_000

// fill puts a fleet of the size that the goals name into the state.
func (w *world) fill(n int) {
	w.t.Helper()
	w.addHosts("h1")
	for i := 0; i < n; i += 500 {
		w.update(func(tx *state.Tx) error {
			for j := i; j < i+500; j++ {
				vm := fleet.VM{
					ID: fmt.Sprintf("fuse-task-%05d", j), UID: fmt.Sprintf("01J0000000000000000000%05d", j), Generation: 2, Owner: "master",
					State: fleet.VMStateRunning, TaskID: fmt.Sprintf("task-%05d", j), HostID: "h1", URL: "127.0.0.1:20000",
					Spec:      fleet.Spec{CPUs: 1, RamMB: 512, StorageGB: 4, Image: "minimal", Labels: map[string]string{"pool": "a"}},
					Placement: &fleet.PlacementDecision{HostID: "h1", Policy: fleet.PlacementSpread, Candidates: 4},
					Boot: fleet.BootRecord{Mode: fleet.BootCold, Steps: []fleet.StepTime{
						{Step: "credentials", Took: 1}, {Step: "place", Took: 1}, {Step: "host_create", Took: 1}, {Step: "profile_files", Took: 1}, {Step: "settle", Took: 1},
					}},
					CreatedAt: tx.Now(), UpdatedAt: tx.Now(),
				}
				if err := putState(tx, vm, fleet.VMStateProvisioning); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// sink is an answer that nobody keeps.
type sink struct {
	header http.Header
	status int
	n      int
}

func (s *sink) Header() http.Header { return s.header }
func (s *sink) WriteHeader(c int)   { s.status = c }
func (s *sink) Write(p []byte) (int, error) {
	s.n += len(p)
	return len(p), nil
}

func benchRequest(method, path, body string) *http.Request {
	var r *http.Request
	if body == "" {
		r = httptest.NewRequest(method, "http://127.0.0.1"+path, nil)
	} else {
		r = httptest.NewRequest(method, "http://127.0.0.1"+path, strings.NewReader(body))
	}
	r.Header.Set("Authorization", "Bearer "+testToken)
	return r
}

func (w *world) serve(b *testing.B, r *http.Request, status int) {
	s := &sink{header: http.Header{}}
	w.srv.ServeHTTP(s, r)
	if s.status != status {
		b.Fatalf("%s %s answered %d", r.Method, r.URL, s.status)
	}
}

// Goal: 3 ms for a page of 200 at 10,000 environments.
func BenchmarkPageOf200(b *testing.B) {
	w := newWorld(b, quiet)
	w.fill(benchFleet)
	cursor := web.EncodeCursor("fuse-task-05000")
	b.ReportAllocs()
	for b.Loop() {
		w.serve(b, benchRequest("GET", "/v1/environments?limit=200&cursor="+cursor, ""), http.StatusOK)
	}
}

// Goal: 100 ms for all of 10,000, over a connection.
func BenchmarkListAll(b *testing.B) {
	w := newWorld(b, quiet)
	w.fill(benchFleet)
	ts := httptest.NewServer(w.srv)
	defer ts.Close()
	b.ReportAllocs()
	for b.Loop() {
		cursor, bytes := "", int64(0)
		for {
			r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, ts.URL+"/v1/environments?limit=200&cursor="+cursor, nil)
			if err != nil {
				b.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+testToken)
			resp, err := ts.Client().Do(r)
			if err != nil {
				b.Fatal(err)
			}
			raw, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				b.Fatal(err)
			}
			bytes += int64(len(raw))
			_, rest, more := strings.Cut(string(raw[len(raw)-min(len(raw), 200):]), `"next_cursor":"`)
			if !more {
				break
			}
			cursor, _, _ = strings.Cut(rest, `"`)
		}
		b.SetBytes(bytes)
	}
}

// Goal: 1 ms, whatever the fleet.
func BenchmarkReady(b *testing.B) {
	for _, n := range []int{0, benchFleet} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			var w *world
			w = newWorld(b, quiet, withReady(func(ctx context.Context) error { return w.store.Ready(ctx) }))
			w.fill(n)
			b.ReportAllocs()
			for b.Loop() {
				w.serve(b, benchRequest("GET", "/ready", ""), http.StatusOK)
			}
		})
	}
}

// Goal: a create costs the edge less than 0.3 ms. The lifecycle does nothing
// here, so this is the edge alone, metrics and log included.
func BenchmarkCreate(b *testing.B) {
	w := newWorld(b, quiet)
	vm := &fleet.VM{ID: "fuse-a", UID: "u", State: fleet.VMStateRunning, Boot: fleet.BootRecord{Mode: fleet.BootCold, Steps: make([]fleet.StepTime, 7)}}
	w.envs.create = func(context.Context, lifecycle.CreateRequest) (*fleet.VM, error) {
		w.envs.creates = nil
		return vm, nil
	}
	body := `{"task_id":"a","spec":{"cpus":1,"ram_mb":512,"image":"minimal","labels":{"a":"b"}},"startup_script":"echo hello","secrets":{"A":"B"}}`
	b.ReportAllocs()
	for b.Loop() {
		w.serve(b, benchRequest("POST", "/v1/environments", body), http.StatusCreated)
	}
}

// One event to a thousand followers of its environment.
func BenchmarkFanOut(b *testing.B) {
	w := newWorld(b, quiet)
	vm := w.add("a")
	ctx, cancel := context.WithCancel(context.Background())
	var ends []<-chan struct{}
	for range 1000 {
		ends = append(ends, w.open(ctx, vm.ID, "", &follower{}))
	}
	for b.Loop() {
		w.setState(vm.ID, fleet.VMStateRunning)
	}
	cancel()
	for _, end := range ends {
		<-end
	}
}

// What a client of the same language sees, decoding included.
func BenchmarkClientGet(b *testing.B) {
	w := newWorld(b, quiet)
	vm := w.add("a")
	ts := httptest.NewServer(w.srv)
	defer ts.Close()
	c, err := client.New(ts.URL, client.Options{Token: testToken, Transport: ts.Client().Transport})
	if err != nil {
		b.Fatal(err)
	}
	var env gen.Environment
	for b.Loop() {
		if env, err = c.Get(context.Background(), vm.ID); err != nil || env.ID != vm.ID {
			b.Fatal(env, err)
		}
	}
}
