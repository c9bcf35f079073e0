package feed

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// world is the routes over the real state. Who asks is told by a header.
type world struct {
	t       testing.TB
	store   *state.Store
	router  *web.Router
	streams *web.Streams
	sight   events.Sight
	lagged  int
	mu      sync.Mutex
}

func (w *world) StreamOpened() func()         { return func() {} }
func (w *world) EventDelivered(time.Duration) {}
func (w *world) StreamLagged() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lagged++
}

func newWorld(t testing.TB, opts ...func(*state.Config)) *world {
	t.Helper()
	j := memory.New(memory.Options{})
	sc := state.Config{Journal: j, Lease: j}
	for _, o := range opts {
		o(&sc)
	}
	store, err := state.Open(context.Background(), sc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	w := &world{t: t, store: store, streams: web.NewStreams(100)}
	w.router = web.NewRouter(Routes(Config{
		Store: store, Streams: w.streams, Metrics: w, Sight: func(string) events.Sight { return w.sight }, MaxRuntime: 2 * time.Hour,
	}))
	return w
}

// ServeHTTP does what the server does around a route.
func (w *world) ServeHTTP(rw http.ResponseWriter, hr *http.Request) {
	p, param := w.router.Match(hr.URL)
	who := auth.Master
	if name := hr.Header.Get("As"); name != "" {
		who = auth.Principal{Name: name, Role: fleet.RoleUser}
	}
	r := &web.Request{
		Request: hr.WithContext(auth.With(hr.Context(), who)), Route: p.Methods[hr.Method], Param: param, Log: slog.New(slog.DiscardHandler),
	}
	if err := r.Route.Handle(&web.Writer{ResponseWriter: rw}, r); err != nil {
		code := map[fleet.Code]int{fleet.CodeNotFound: 404, fleet.CodeInvalidArgument: 400, fleet.CodeUnavailable: 503}[fleet.CodeOf(err)]
		http.Error(rw, err.Error(), max(code, 400))
	}
}

func (w *world) get(path string, header ...string) *httptest.ResponseRecorder {
	w.t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	w.ServeHTTP(rec, r)
	return rec
}

func decode[T any](t testing.TB, rec *httptest.ResponseRecorder) (v T) {
	t.Helper()
	if rec.Code != http.StatusOK {
		t.Fatalf("answered %d: %s", rec.Code, rec.Body)
	}
	d := json.NewDecoder(rec.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func (w *world) update(fn func(*state.Tx) error) state.Commit {
	w.t.Helper()
	c, err := w.store.Update(context.Background(), fn)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// emit commits one event of an environment and returns its id.
func (w *world) emit(vm, typ, owner string) string {
	w.t.Helper()
	c := w.update(func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: vm, UID: "u-" + vm, HostID: "h1", Type: typ, Owner: owner})
		return nil
	})
	return fleet.EventID(c.Events[0].Seq)
}

// reader is the other side of a stream, in the process.
type reader struct {
	header http.Header
	gate   chan struct{} // if there, waited for before each write

	mu     sync.Mutex
	status int
	data   strings.Builder
}

func (f *reader) Header() http.Header { return f.header }
func (f *reader) Flush()              {}
func (f *reader) WriteHeader(status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = status
}

func (f *reader) Write(p []byte) (int, error) {
	if f.gate != nil {
		<-f.gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.data.Write(p)
}

func (f *reader) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.data.String()
}

// message is one server-sent event.
type message struct {
	id, event string
	data      json.RawMessage
}

func (f *reader) messages(t testing.TB) (out []message) {
	t.Helper()
	text := f.text()
	for block := range strings.SplitSeq(strings.TrimSuffix(text, "\n\n"), "\n\n") {
		var m message
		for line := range strings.SplitSeq(block, "\n") {
			field, value, _ := strings.Cut(line, ": ")
			switch field {
			case "id":
				m.id = value
			case "event":
				m.event = value
			case "data":
				m.data = json.RawMessage(value)
			case "":
			default:
				t.Fatalf("line %q", line)
			}
		}
		if m.data != nil {
			if !json.Valid(m.data) {
				t.Fatalf("data %q", m.data)
			}
			out = append(out, m)
		}
	}
	return out
}

func (f *reader) ids(t testing.TB) (out []string) {
	for _, m := range f.messages(t) {
		if m.event == "resync" {
			m.id = "resync " + m.id
		}
		out = append(out, m.id)
	}
	return out
}

// open starts a stream in the background.
func (w *world) open(ctx context.Context, path, lastID string, f *reader, header ...string) (ended <-chan struct{}) {
	f.header = http.Header{}
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	r.Header.Set("Accept", "text/event-stream")
	if lastID != "" {
		r.Header.Set("Last-Event-ID", lastID)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.ServeHTTP(f, r)
	}()
	return done
}

func eventIDs(events []gen.Event) (out []string) {
	for _, e := range events {
		out = append(out, e.ID)
	}
	return out
}

func upTo(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint(i+1))
	}
	return out
}
