package guest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/process"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/sim"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/providertest"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/hostdtest"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// world is the routes over everything below them but a machine: a host agent
// with a simulated one, whose processes run here.
type world struct {
	t       testing.TB
	url     string
	guests  *guestops.Service
	store   *state.Store
	streams *web.Streams
	router  *web.Router
	uid     string
}

type one struct{ p provider.Provider }

func (o one) Provider(string) (provider.Provider, error) { return o.p, nil }

func newWorld(t testing.TB) *world {
	t.Helper()
	reaper := process.NewReaper()
	runner, err := process.NewRunner(process.Config{Reaper: reaper})
	if err != nil {
		t.Fatal(err)
	}
	drv, err := sim.New(sim.Options{Processes: runner})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		runner.Close()
		reaper.Wait()
	})
	host := hostdtest.Start(t, hostd.Config{Dir: t.TempDir(), Driver: drv}, "")
	p := host.Connect(providertest.NewFleet())
	w := &world{t: t, uid: ulid.Make().String(), streams: web.NewStreams(100)}
	if _, err := p.Create(t.Context(), provider.CreateRequest{
		Ref: provider.Ref{ID: "fuse-t", UID: w.uid, Generation: 1, OpID: "create"}, Spec: fleet.Spec{CPUs: 1, RamMB: 1},
	}); err != nil {
		t.Fatal(err)
	}
	j := memory.New(memory.Options{})
	if w.store, err = state.Open(context.Background(), state.Config{Journal: j, Lease: j}); err != nil {
		t.Fatal(err)
	}
	w.put(fleet.VMStateProvisioning, fleet.VMStateRunning)
	if w.guests, err = guestops.New(guestops.Config{Store: w.store, Providers: one{p}}); err != nil {
		t.Fatal(err)
	}
	w.router = web.NewRouter(Routes(Config{Sessions: w.guests, Streams: w.streams}))
	srv := httptest.NewServer(w)
	w.url = srv.URL
	t.Cleanup(func() {
		w.streams.End()
		srv.CloseClientConnections()
		srv.Close()
		if err := w.store.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) put(states ...fleet.VMState) {
	w.t.Helper()
	for _, s := range states {
		if _, err := w.store.Update(context.Background(), func(tx *state.Tx) error {
			if _, ok := tx.Hosts().Get("local"); !ok {
				if err := tx.PutHost(fleet.Host{ID: "local", Capacity: fleet.HostCapacity{CPUs: 9, RamMB: 9000, StorageGB: 9, VMCount: 9}}); err != nil {
					return err
				}
			}
			return tx.PutVM(fleet.VM{ID: "fuse-t", UID: w.uid, Generation: 1, State: s, TaskID: "t", HostID: "local", Spec: fleet.Spec{CPUs: 1, RamMB: 64, StorageGB: 1}})
		}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// ServeHTTP does what the server does around a route.
func (w *world) ServeHTTP(rw http.ResponseWriter, hr *http.Request) {
	p, param := w.router.Match(hr.URL)
	r := &web.Request{
		Request: hr.WithContext(auth.With(hr.Context(), auth.Master)), Route: p.Methods[hr.Method], Param: param, Item: p.Item(hr.URL),
		Log: slog.New(slog.DiscardHandler), ID: "req",
	}
	ww := &web.Writer{ResponseWriter: rw}
	var err error
	if r.Route.BodyLimit > 0 {
		err = r.ReadBody(ww, 1<<40)
	}
	if err == nil {
		err = r.Route.Handle(ww, r)
	}
	if err == nil {
		return
	}
	code := map[fleet.Code]int{
		fleet.CodeNotFound: 404, fleet.CodeInvalidArgument: 400, fleet.CodeUnavailable: 503, fleet.CodeConflict: 409,
		fleet.CodeUnimplemented: 501, fleet.CodePayloadTooLarge: 413, fleet.CodeForbidden: 403,
	}[fleet.CodeOf(err)]
	var fe *fleet.Error
	details := ""
	if errors.As(err, &fe) {
		raw, _ := json.Marshal(fe.Details)
		details = string(raw)
	}
	http.Error(rw, err.Error()+" "+details, max(code, 400))
}

// do sends a request and returns the answer's status and body.
func (w *world) do(method, path, body string) (int, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, w.url+"/v1/environments/fuse-t"+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
	return res.StatusCode, string(raw)
}

// want sends a request that is to be answered with a status.
func (w *world) want(status int, method, path, body string) string {
	w.t.Helper()
	got, text := w.do(method, path, body)
	if got != status {
		w.t.Fatalf("%s %s: %d, not %d: %s", method, path, got, status, text)
	}
	return text
}

func (w *world) process(method, path, body string, status int) (p gen.Process) {
	w.t.Helper()
	if err := json.Unmarshal([]byte(w.want(status, method, path, body)), &p); err != nil {
		w.t.Fatal(err)
	}
	return p
}
