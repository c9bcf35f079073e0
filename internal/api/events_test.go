package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/testkit"
)

// follower is the reading side of a stream, in the process. Gate, if set, is
// waited for before each write.
type follower struct {
	header http.Header
	gate   chan struct{}

	mu     sync.Mutex
	status int
	data   strings.Builder
}

func (f *follower) Header() http.Header { return f.header }
func (f *follower) Flush()              {}
func (f *follower) WriteHeader(status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = status
}

func (f *follower) Write(p []byte) (int, error) {
	if f.gate != nil {
		<-f.gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.data.Write(p)
}

func (f *follower) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.data.String()
}

func (f *follower) events(t testing.TB) []gen.EnvironmentEvent {
	t.Helper()
	return parseEvents(t, f.text())
}

// parseEvents reads a whole stream, which has id and data lines and comments.
func parseEvents(t testing.TB, text string) []gen.EnvironmentEvent {
	t.Helper()
	var out []gen.EnvironmentEvent
	for block := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		if block == "" || block == ": keepalive" {
			continue
		}
		id, data, ok := strings.Cut(block, "\n")
		var ev gen.EnvironmentEvent
		if !ok || !strings.HasPrefix(id, "id: ") || !strings.HasPrefix(data, "data: ") || strings.Contains(data, "\n") {
			t.Fatalf("event %q has other lines than id and data", block)
		}
		if err := json.Unmarshal([]byte(data[len("data: "):]), &ev); err != nil {
			t.Fatal(err)
		}
		if ev.ID != id[len("id: "):] || ev.Event != "state" {
			t.Fatalf("event %q", block)
		}
		out = append(out, ev)
	}
	return out
}

// open starts a stream in the background.
func (w *world) open(ctx context.Context, id, lastID string, f *follower) (ended <-chan struct{}) {
	f.header = http.Header{}
	r := httptest.NewRequestWithContext(ctx, "GET", "http://127.0.0.1/v1/environments/"+id+"/events", nil)
	r.Header.Set("Authorization", "Bearer "+testToken)
	if lastID != "" {
		r.Header.Set("Last-Event-ID", lastID)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.srv.ServeHTTP(f, r)
	}()
	return done
}

// stream reads a stream that ends by itself.
func (w *world) stream(id, lastID string) (int, []gen.EnvironmentEvent) {
	w.t.Helper()
	f := &follower{}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	<-w.open(ctx, id, lastID, f)
	if ctx.Err() != nil {
		w.t.Fatalf("the stream of %s from %q did not end: %s", id, lastID, f.text())
	}
	if f.status != http.StatusOK {
		return f.status, nil
	}
	return f.status, f.events(w.t)
}

// logged is what the log has of an environment's states after an id.
func (w *world) logged(id string, after uint64) []fleet.Event {
	w.t.Helper()
	events, err := w.store.Events(context.Background(), state.EventQuery{VMID: id, StatesOnly: true, After: after, Limit: state.MaxEventPage})
	if err != nil {
		w.t.Fatal(err)
	}
	return events
}

func idsOf(events []gen.EnvironmentEvent) []string {
	var ids []string
	for _, ev := range events {
		ids = append(ids, ev.ID)
	}
	return ids
}

func TestStreamBeginsWithTheStateAndEndsWithTheEnvironment(t *testing.T) {
	w := newWorld(t)
	vm := w.add("a")
	w.add("noise")
	_, head := w.store.Head()
	f := &follower{}
	done := w.open(t.Context(), vm.ID, "", f)
	testkit.Eventually(t, time.Minute, "the first message", func() bool { return f.text() != "" })
	if f.header.Get("Content-Type") != "text/event-stream" || f.header.Get("Cache-Control") != "no-cache" || f.header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("headers %v", f.header)
	}
	w.setState(vm.ID, fleet.VMStateDraining)
	w.add("more-noise")
	w.remove(vm.ID)
	<-done
	events := f.events(t)
	var states []string
	for _, ev := range events {
		states = append(states, ev.State)
	}
	if want := []string{"running", "draining", "destroying", "destroyed"}; !slices.Equal(states, want) {
		t.Fatalf("states %v, want %v", states, want)
	}
	if first := events[0]; first.ID != fleet.EventID(head) || first.URL != vm.URL || first.VMID != vm.ID || first.UpdatedAt.IsZero() {
		t.Errorf("snapshot %+v at head %d", first, head)
	}
	text := w.call("GET", "/metrics", "").Body.String()
	if !strings.Contains(text, "orchestrator_sse_subscribers 0") || strings.Contains(text, `http_request_duration_seconds_count{method="GET",route="/v1/environments/{id}/events"}`) {
		t.Error("a stream is still counted, or was timed as a request")
	}
}

// From whatever id a stream is resumed, it has exactly what the log has after
// it, up to the end.
func TestResumeAtEveryPoint(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t, func(_ *Config, _ *auth.Config, sc *state.Config) {
			sc.MaxEventsInMemory = rapid.IntRange(1, 40).Draw(rt, "memory")
		})
		w.add("other")
		vm := w.add("a")
		for range rapid.IntRange(0, 10).Draw(rt, "steps") {
			if rapid.Bool().Draw(rt, "noise") {
				w.setState("fuse-other", fleet.VMStateRunning)
			} else {
				w.setState(vm.ID, fleet.VMStateRunning)
			}
		}
		w.remove(vm.ID)
		log := w.logged(vm.ID, 0)
		_, head := w.store.Head()
		end := log[len(log)-1].Seq
		for after := range head {
			var want []string
			for _, ev := range log {
				if ev.Seq > after {
					want = append(want, fleet.EventID(ev.Seq))
				}
			}
			status, events := w.stream(vm.ID, fleet.EventID(after))
			if after >= end {
				if status != http.StatusNoContent {
					rt.Fatalf("after the end at %d, from %d: %d", end, after, status)
				}
				continue
			}
			if status != http.StatusOK || !slices.Equal(idsOf(events), want) || events[len(events)-1].State != "destroyed" {
				rt.Fatalf("from %d: %d %v, want %v", after, status, idsOf(events), want)
			}
		}
	})
}

func TestLastEventIDsThatMeanNothing(t *testing.T) {
	w := newWorld(t)
	w.add("a")
	w.add("gone")
	w.remove("fuse-gone")
	_, head := w.store.Head()
	for _, id := range []string{"", "ffffffffffffffffffffffffffffffff", "-1", "1.5", "99999999999999999999", fleet.EventID(head + 1)} {
		f := &follower{}
		ctx, cancel := context.WithCancel(t.Context())
		done := w.open(ctx, "fuse-a", id, f)
		testkit.Eventually(t, time.Minute, "the snapshot", func() bool { return f.text() != "" })
		cancel()
		<-done
		if events := f.events(t); len(events) != 1 || events[0].ID != fleet.EventID(head) || events[0].State != "running" {
			t.Errorf("%q: %+v", id, events)
		}
		if status, _ := w.stream("fuse-gone", id); status != http.StatusNotFound {
			t.Errorf("%q of an ended environment: %d", id, status)
		}
	}
	for _, id := range []string{"", "0", "1"} {
		if status, _ := w.stream("fuse-never", id); status != http.StatusNotFound {
			t.Errorf("%q of one that never was: %d", id, status)
		}
	}
}

func TestLivesOfOneID(t *testing.T) {
	w := newWorld(t)
	w.add("a")
	w.remove("fuse-a")
	first := w.logged("fuse-a", 0)
	w.add("a")
	w.remove("fuse-a")
	second := w.logged("fuse-a", first[len(first)-1].Seq)
	for name, c := range map[string]struct {
		from string
		want []fleet.Event
	}{
		"0 is the oldest of the last life":       {"0", second},
		"within the first life, to its end":      {fleet.EventID(first[0].Seq), first[1:]},
		"from the first's end, the second":       {fleet.EventID(first[len(first)-1].Seq), second},
		"within the second life, to its own end": {fleet.EventID(second[0].Seq), second[1:]},
	} {
		_, events := w.stream("fuse-a", c.from)
		var want []string
		for _, ev := range c.want {
			want = append(want, fleet.EventID(ev.Seq))
		}
		if !slices.Equal(idsOf(events), want) {
			t.Errorf("%s: %v, want %v", name, idsOf(events), want)
		}
	}
}

// When the log has been cut, the record of the life still tells its end.
func TestEndIsToldByTheRecord(t *testing.T) {
	w := newWorld(t)
	w.add("a")
	w.update(func(tx *state.Tx) error {
		return tx.PutLife(fleet.Life{UID: "u", VMID: "fuse-old", State: fleet.VMStateFailed, Error: "why", EndedAt: tx.Now(), EndedSeq: 2})
	})
	status, events := w.stream("fuse-old", "1")
	if status != http.StatusOK || len(events) != 1 || events[0].ID != "2" || events[0].State != "failed" || events[0].Error != "why" {
		t.Errorf("%d %+v", status, events)
	}
	if status, _ = w.stream("fuse-old", "2"); status != http.StatusNoContent {
		t.Errorf("%d", status)
	}
}

// A reader slower than its buffer reads the log instead and misses nothing,
// the end least of all.
func TestSlowReaderMissesNothing(t *testing.T) {
	w := newWorld(t, func(_ *Config, _ *auth.Config, sc *state.Config) { sc.WatchBuffer = 4 })
	vm := w.add("a")
	_, head := w.store.Head()
	f := &follower{gate: make(chan struct{})}
	done := w.open(t.Context(), vm.ID, "", f)
	f.gate <- struct{}{} // the snapshot
	for range 700 {
		w.setState(vm.ID, fleet.VMStateRunning)
	}
	w.remove(vm.ID)
	close(f.gate)
	<-done
	want := []string{fleet.EventID(head)}
	for _, ev := range w.logged(vm.ID, head) {
		want = append(want, fleet.EventID(ev.Seq))
	}
	events := f.events(t)
	if !slices.Equal(idsOf(events), want) || events[len(events)-1].State != "destroyed" {
		t.Errorf("%d events, want %d", len(events), len(want))
	}
	if text := w.call("GET", "/metrics", "").Body.String(); strings.Contains(text, "orchestrator_sse_lagged_total 0") {
		t.Error("the reader never lagged, so this showed nothing")
	}
}

func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		vm := w.add("a")
		ctx, cancel := context.WithCancel(t.Context())
		f := &follower{}
		done := w.open(ctx, vm.ID, "", f)
		<-time.After(14 * time.Second)
		w.setState(vm.ID, fleet.VMStateRunning)
		<-time.After(100 * time.Second)
		synctest.Wait()
		if n := strings.Count(f.text(), ": keepalive\n\n"); n != 7 {
			t.Errorf("%d keep-alives in 114 s", n)
		}
		cancel()
		<-done
	})
}

// A client whose connection breaks all the time, while the server is replaced
// under it too, sees every event once.
func TestClientResumesOverBrokenConnections(t *testing.T) {
	w := newWorld(t)
	vm := w.add("a")
	var now atomic.Pointer[Server]
	now.Store(w.srv)
	ts := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { now.Load().ServeHTTP(rw, r) }))
	defer ts.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	cuts := &testkit.CutTransport{Most: 700}
	c, err := client.New(ts.URL, client.Options{Token: testToken, Transport: cuts})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- c.Events(t.Context(), vm.ID, "0", func(ev gen.EnvironmentEvent) error {
			if got = append(got, ev.ID); len(got) == 1 {
				close(started)
			}
			return nil
		})
	}()
	<-started
	for i := range 60 {
		w.setState(vm.ID, fleet.VMStateRunning)
		if i%20 == 10 {
			cfg := w.srv.cfg
			cfg.Streams = nil // a server has its own
			now.Swap(w.another(cfg)).EndStreams()
		}
	}
	w.remove(vm.ID)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, ev := range w.logged(vm.ID, 0) {
		want = append(want, fleet.EventID(ev.Seq))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %d events, want %d\n%v\n%v", len(got), len(want), got, want)
	}
	if cuts.Cuts.Load() == 0 {
		t.Error("no connection was cut")
	}
	now.Load().EndStreams()
}

// Open streams do not hold up a shutdown, whatever the protocol.
func TestShutdownIsPrompt(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			vm := w.add("a")
			ts := httptest.NewUnstartedServer(nil)
			ts.Config = w.srv.HTTPServer(Timeouts{}, nil)
			if ts.EnableHTTP2 = http2; http2 {
				ts.StartTLS()
			} else {
				ts.Start()
			}
			defer ts.Close()
			const streams = 50
			var bodies []io.ReadCloser
			for range streams {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, ts.URL+"/v1/environments/"+vm.ID+"/events", nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Authorization", "Bearer "+testToken)
				resp, err := ts.Client().Do(r) //nolint:bodyclose // all bodies are read and closed below
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil || resp.Proto != name {
					t.Fatal(resp.Proto, err)
				}
				bodies = append(bodies, resp.Body)
			}
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := ts.Config.Shutdown(ctx); err != nil {
				t.Errorf("shutdown: %v", err)
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("shutdown took %s with %d open streams", took, streams)
			}
			for _, b := range bodies {
				rest, err := io.ReadAll(b)
				if err != nil || strings.Contains(string(rest), "destroyed") {
					t.Errorf("a stream ended with %v and %q", err, rest)
				}
				b.Close()
			}
			if status, _ := w.stream(vm.ID, ""); status != http.StatusServiceUnavailable {
				t.Errorf("a new stream during shutdown answered %d", status)
			}
		})
	}
}

func TestStreamsAreBounded(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *auth.Config, _ *state.Config) { c.Streams = web.NewStreams(2) })
	vm := w.add("a")
	ctx, cancel := context.WithCancel(t.Context())
	var ends []<-chan struct{}
	for range 2 {
		f := &follower{}
		ends = append(ends, w.open(ctx, vm.ID, "", f))
		testkit.Eventually(t, time.Minute, "the first message", func() bool { return f.text() != "" })
	}
	e := w.want(w.call(http.MethodGet, "/v1/environments/"+vm.ID+"/events", ""), http.StatusServiceUnavailable, fleet.CodeUnavailable)
	if e.Details[fleet.DetailLimit] != "2" {
		t.Errorf("%+v", e)
	}
	cancel()
	for _, end := range ends {
		<-end
	}
	w.remove(vm.ID)
	if status, _ := w.stream(vm.ID, "0"); status != http.StatusOK {
		t.Errorf("after others have left: %d", status)
	}
}

// Thousands of followers each get the end, and none is left afterwards.
func TestManyFollowers(t *testing.T) {
	w := newWorld(t)
	const n = 3000
	var all []*follower
	var ends []<-chan struct{}
	for i := range n {
		if i%100 == 0 {
			w.add(fmt.Sprintf("t%d", i/100))
		}
		f := &follower{}
		all = append(all, f)
		ends = append(ends, w.open(t.Context(), fmt.Sprintf("fuse-t%d", i/100), "", f))
	}
	for i := range n / 100 {
		w.remove(fmt.Sprintf("fuse-t%d", i))
	}
	for i, end := range ends {
		<-end
		// A stream that began after the end says so.
		if f := all[i]; f.status != http.StatusNotFound && !strings.Contains(f.text(), `"destroyed"`) {
			t.Fatalf("follower %d ended with %d %q", i, f.status, f.text())
		}
	}
}

// A failed create ends its stream with the failure.
func TestFailedCreateEndsTheStream(t *testing.T) {
	w := newWorld(t)
	vm, err := w.envs.CreateAsync(t.Context(), lifecycle.CreateRequest{TaskID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{}
	done := w.open(t.Context(), vm.ID, "0", f)
	testkit.Eventually(t, time.Minute, "the first message", func() bool { return f.text() != "" })
	w.update(func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: vm.ID, UID: vm.UID, Type: fleet.EventVMFailed, State: fleet.VMStateFailed, Error: "no_boot"})
		return tx.DeleteVM(vm.ID)
	})
	<-done
	events := f.events(t)
	if last := events[len(events)-1]; len(events) != 2 || last.State != "failed" || last.Error != "no_boot" {
		t.Errorf("%+v", events)
	}
}
