package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"github.com/fusevm/fuse/internal/amend"
	"github.com/fusevm/fuse/internal/api/feed"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const testToken = "test-token"

// world is a server over the real state with stand-ins for the services.
type world struct {
	t       testing.TB
	store   *state.Store
	envs    *fakeEnvironments
	guests  *fakeGuests
	hosts   *fakeHosts
	metrics *metrics.Metrics
	log     *testkit.Output
	srv     *Server
}

type option func(*Config, *auth.Config, *state.Config)

func newWorld(t testing.TB, opts ...option) *world {
	t.Helper()
	journal := memory.New(memory.Options{})
	log := &testkit.Output{}
	sc := state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}, Logger: slog.New(slog.DiscardHandler)}
	ac := auth.Config{Token: testToken}
	w := &world{t: t, metrics: metrics.New("test"), log: log, guests: &fakeGuests{}, hosts: &fakeHosts{}}
	cfg := Config{
		Guests: w.guests, Hosts: w.hosts, Metrics: w.metrics, MetricsHandler: w.metrics.Handler(), Version: "v0-test",
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, opt := range opts {
		opt(&cfg, &ac, &sc)
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
	w.store, w.envs, w.hosts.store = store, &fakeEnvironments{store: store}, store
	cfg.Store, cfg.Environments, cfg.Awaiter, cfg.Keeper, cfg.Gate = store, w.envs, w.envs, idempotency.New(store), auth.New(ac)
	cfg.Amender = amend.New(store)
	w.srv = w.another(cfg)
	return w
}

// another makes a server with the routes of events, and streams of its own unless
// it has some.
func (w *world) another(cfg Config) *Server {
	w.t.Helper()
	if cfg.Streams == nil {
		cfg.Streams = web.NewStreams(defaultStreams)
	}
	cfg.Extra = feed.Routes(feed.Config{
		Store: w.store, Streams: cfg.Streams, Metrics: w.metrics, Sight: func(string) events.Sight { return events.Sight{} },
	})
	srv, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return srv
}

// call sends one request with the token, checks the answer against the
// contract, and returns it.
func (w *world) call(method, path, body string, header ...string) *httptest.ResponseRecorder {
	w.t.Helper()
	return w.callContext(context.Background(), method, path, body, header...)
}

func (w *world) callContext(ctx context.Context, method, path, body string, header ...string) *httptest.ResponseRecorder {
	w.t.Helper()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r := httptest.NewRequestWithContext(ctx, method, "http://127.0.0.1:8080"+path, reader)
	r.RemoteAddr = "127.0.0.1:4711"
	r.Header.Set("Authorization", "Bearer "+testToken)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		switch {
		case header[i] == "Host":
			r.Host = header[i+1]
		case header[i+1] == "":
			r.Header.Del(header[i])
		default:
			r.Header.Set(header[i], header[i+1])
		}
	}
	rec := httptest.NewRecorder()
	w.srv.ServeHTTP(rec, r)
	if ctx.Err() == nil {
		w.checkContract(r, rec)
	}
	return rec
}

// want checks status and, for errors, the code, and returns the error.
func (w *world) want(rec *httptest.ResponseRecorder, status int, code fleet.Code) gen.ErrorInfo {
	w.t.Helper()
	var body gen.ErrorBody
	if rec.Code >= 400 {
		if err := json.Unmarshal(rec.Body.Bytes(), &body); err != nil {
			w.t.Fatalf("no envelope: %v in %q", err, rec.Body)
		}
	}
	if rec.Code != status || body.Error.Code != string(code) {
		w.t.Fatalf("answered %d %q, want %d %q: %s", rec.Code, body.Error.Code, status, code, rec.Body)
	}
	return body.Error
}

func decodeInto[T any](t testing.TB, rec *httptest.ResponseRecorder) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(rec.Body.Bytes(), &v); err != nil {
		t.Fatalf("%v in %q", err, rec.Body)
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

// add makes a running environment of a task.
func (w *world) add(task string) *fleet.VM {
	w.t.Helper()
	vm, err := w.envs.Create(context.Background(), lifecycle.CreateRequest{TaskID: task, Owner: "master"})
	if err != nil {
		w.t.Fatal(err)
	}
	return vm
}

func (w *world) addHosts(ids ...string) {
	w.t.Helper()
	w.update(func(tx *state.Tx) error {
		for _, id := range ids {
			room := fleet.HostCapacity{CPUs: 1 << 20, RamMB: 1 << 30, StorageGB: 1 << 20, VMCount: 1 << 20, HugePages: 1 << 20, GPUs: 8}
			if err := tx.PutHost(fleet.Host{ID: id, State: fleet.HostActive, Capacity: room}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *world) setState(id string, to fleet.VMState) {
	w.t.Helper()
	w.update(func(tx *state.Tx) error {
		vm, ok := tx.VMs().Get(id)
		if !ok {
			return fleet.ErrVMNotFound
		}
		return putState(tx, *vm, to)
	})
}

func putState(tx *state.Tx, vm fleet.VM, to fleet.VMState) error {
	vm.State, vm.UpdatedAt = to, tx.Now()
	tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: vm.ID, UID: vm.UID, Type: "vm." + string(to), State: to, URL: vm.URL})
	return tx.PutVM(vm)
}

func (w *world) remove(id string) {
	w.t.Helper()
	if err := w.envs.Destroy(context.Background(), id, fleet.Reason{Actor: "user:master", Rule: fleet.RuleManualDestroy}); err != nil {
		w.t.Fatal(err)
	}
}

// fakeEnvironments does what lifecycle does to the state, without hosts. A set
// field takes the place of its verb.
type fakeEnvironments struct {
	store *state.Store

	mu      sync.Mutex
	creates []lifecycle.CreateRequest // guarded by mu
	lives   int                       // guarded by mu

	create  func(context.Context, lifecycle.CreateRequest) (*fleet.VM, error)
	destroy func(context.Context, string, fleet.Reason) error
	verb    func(ctx context.Context, name, id string) (*fleet.VM, error)
	await   func(uid string) error
}

func (f *fakeEnvironments) Await(_ context.Context, uid string) (*fleet.VM, bool, error) {
	if f.await == nil {
		return nil, false, nil
	}
	return nil, true, f.await(uid)
}

func (f *fakeEnvironments) Create(ctx context.Context, req lifecycle.CreateRequest) (*fleet.VM, error) {
	vm, err := f.CreateAsync(ctx, req)
	if err != nil || f.create != nil {
		return vm, err
	}
	var row fleet.VM
	c, err := f.store.Update(ctx, func(tx *state.Tx) error {
		row = *vm
		row.State, row.URL = fleet.VMStateRunning, "192.0.2.1:4000"
		if req.Idempotency != nil {
			rec := *req.Idempotency
			rec.ResourceID, rec.Done, rec.CreatedAt = row.UID, true, tx.Now()
			if err := tx.PutIdempotency(rec); err != nil {
				return err
			}
		}
		return putState(tx, row, fleet.VMStateRunning)
	})
	row.Revision = c.Revision
	return &row, err
}

func (f *fakeEnvironments) CreateAsync(ctx context.Context, req lifecycle.CreateRequest) (*fleet.VM, error) {
	f.mu.Lock()
	f.creates = append(f.creates, req)
	f.lives++
	uid := fmt.Sprintf("01TESTTESTTESTTESTTEST%04d", f.lives)
	f.mu.Unlock()
	if f.create != nil {
		return f.create(ctx, req)
	}
	req.Spec.GPUs, req.Spec.GPUKind, req.Spec.GPUProfile = 0, "", "" // no host here has any
	row := fleet.VM{
		ID: "fuse-" + req.TaskID, UID: uid, Generation: 1, Owner: req.Owner, State: fleet.VMStateProvisioning, TaskID: req.TaskID,
		HostID: req.Spec.HostID, Spec: req.Spec,
		Placement: &fleet.PlacementDecision{HostID: "h1", Policy: fleet.PlacementSpread, Candidates: 1},
		Boot:      fleet.BootRecord{Mode: fleet.BootCold, Steps: []fleet.StepTime{{Step: "place", Took: 1500 * time.Microsecond}}},
	}
	c, err := f.store.Update(ctx, func(tx *state.Tx) error {
		row.CreatedAt, row.UpdatedAt = tx.Now(), tx.Now()
		return putState(tx, row, fleet.VMStateProvisioning)
	})
	row.Revision = c.Revision
	return &row, err
}

func (f *fakeEnvironments) Destroy(ctx context.Context, id string, reason fleet.Reason) error {
	if f.destroy != nil {
		return f.destroy(ctx, id, reason)
	}
	var vm fleet.VM
	claim := func(tx *state.Tx) error {
		row, ok := tx.VMs().Get(id)
		if !ok {
			if _, ended := tx.Lives().Latest(id); ended {
				return errEnded
			}
			return fleet.Errorf(fleet.CodeNotFound, "environment %s: %w", id, fleet.ErrVMNotFound)
		}
		vm = *row
		vm.End = &reason
		if vm.State == fleet.VMStateDestroying {
			return nil
		}
		vm.State = fleet.VMStateDestroying
		return putState(tx, vm, fleet.VMStateDestroying)
	}
	if _, err := f.store.Update(ctx, claim); err != nil {
		if err == errEnded { //nolint:errorlint // our own value, never wrapped
			return nil
		}
		return err
	}
	c, err := f.store.Update(ctx, func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: id, UID: vm.UID, Type: fleet.EventVMRemoved, State: fleet.VMStateDestroyed})
		return tx.DeleteVM(id)
	})
	if err != nil {
		return err
	}
	_, err = f.store.Update(ctx, func(tx *state.Tx) error {
		return tx.PutLife(fleet.Life{
			UID: vm.UID, VMID: id, TaskID: vm.TaskID, Owner: vm.Owner, State: fleet.VMStateDestroyed, Reason: reason, Spec: vm.Spec,
			CreatedAt: vm.CreatedAt, EndedAt: tx.Now(), EndedSeq: c.Events[0].Seq,
		})
	})
	return err
}

var errEnded = errors.New("ended")

func (f *fakeEnvironments) Drain(ctx context.Context, id, _ string) (*fleet.VM, error) {
	return f.act(ctx, "drain", id, fleet.VMStateDraining)
}

func (f *fakeEnvironments) Complete(ctx context.Context, id, _, _ string) (*fleet.VM, error) {
	return f.act(ctx, "complete", id, fleet.VMStateDestroying)
}

func (f *fakeEnvironments) act(ctx context.Context, name, id string, to fleet.VMState) (*fleet.VM, error) {
	if f.verb != nil {
		return f.verb(ctx, name, id)
	}
	var row fleet.VM
	_, err := f.store.Update(ctx, func(tx *state.Tx) error {
		vm, ok := tx.VMs().Get(id)
		if !ok {
			return fleet.Errorf(fleet.CodeNotFound, "environment %s: %w", id, fleet.ErrVMNotFound)
		}
		if vm.State != fleet.VMStateRunning {
			return fleet.Errorf(fleet.CodeConflict, "environment %s is %s: %w", id, vm.State, fleet.ErrVMNotRunning)
		}
		row = *vm
		row.State = to
		return putState(tx, row, to)
	})
	return &row, err
}

type fakeGuests struct {
	mu    sync.Mutex
	calls []guestops.ExecRequest // guarded by mu
	exec  func(ctx context.Context, id string, req guestops.ExecRequest) (provider.ExecResult, error)
}

func (f *fakeGuests) Exec(ctx context.Context, id string, req guestops.ExecRequest) (provider.ExecResult, error) {
	f.mu.Lock()
	f.calls = append(f.calls, req)
	f.mu.Unlock()
	if f.exec == nil {
		return provider.ExecResult{Stdout: []byte("out\n"), Stderr: []byte("err\n")}, nil
	}
	return f.exec(ctx, id, req)
}

type fakeHosts struct {
	store    *state.Store
	sighting hosts.Sighting
	register func(hosts.RegisterRequest) (fleet.Host, error)
	verb     func(name, id string) error
}

func (f *fakeHosts) Register(ctx context.Context, req hosts.RegisterRequest) (fleet.Host, error) {
	if f.register != nil {
		return f.register(req)
	}
	h := fleet.Host{ID: req.ID, Owner: req.Owner, URL: req.URL, State: fleet.HostActive, Capacity: req.Capacity, Labels: req.Labels, Backend: req.Backend}
	_, err := f.store.Update(ctx, func(tx *state.Tx) error {
		h.CreatedAt, h.UpdatedAt = tx.Now(), tx.Now()
		return tx.PutHost(h)
	})
	return h, err
}

func (f *fakeHosts) act(name, id string) error {
	if f.verb != nil {
		return f.verb(name, id)
	}
	return f.store.View(func(tx *state.ReadTx) error {
		if _, ok := tx.Hosts().Get(id); !ok {
			return fleet.Errorf(fleet.CodeNotFound, "host %s: %w", id, fleet.ErrHostNotFound)
		}
		return nil
	})
}

func (f *fakeHosts) Remove(_ context.Context, id, _ string) error   { return f.act("remove", id) }
func (f *fakeHosts) Cordon(_ context.Context, id, _ string) error   { return f.act("cordon", id) }
func (f *fakeHosts) Uncordon(_ context.Context, id, _ string) error { return f.act("uncordon", id) }
func (f *fakeHosts) Sighting(string) hosts.Sighting                 { return f.sighting }

func allowOnly(cidr string) option {
	return func(_ *Config, ac *auth.Config, _ *state.Config) {
		ac.AllowedCIDRs = []netip.Prefix{netip.MustParsePrefix(cidr)}
	}
}

// quiet logs as a server does that nobody debugs.
func quiet(c *Config, _ *auth.Config, _ *state.Config) {
	c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
}

func withReady(run func(context.Context) error) option {
	return func(c *Config, _ *auth.Config, _ *state.Config) { c.Ready = []Check{{Name: "state_store", Run: run}} }
}

// contract is the document as the source tree has it.
var contract = sync.OnceValues(func() (*openapi3.T, error) {
	return openapi3.NewLoader().LoadFromFile("../../api/openapi.yaml")
})

// checkContract holds an answer to api/openapi.yaml: status, headers and body.
func (w *world) checkContract(r *http.Request, rec *httptest.ResponseRecorder) {
	w.t.Helper()
	doc, err := contract()
	if err != nil {
		w.t.Fatal(err)
	}
	if rec.Header().Get("X-Request-ID") == "" || rec.Header().Get("Server") != "fuse-orchestrator/v0-test" {
		w.t.Errorf("%s %s: headers %v", r.Method, r.URL, rec.Header())
	}
	if rec.Code == http.StatusMethodNotAllowed || rec.Code == statusClientGone || r.Method == http.MethodHead {
		return
	}
	p, param := w.srv.router.Match(r.URL)
	if p == nil {
		if rec.Code != http.StatusNotFound && rec.Code != http.StatusUnauthorized && rec.Code != http.StatusForbidden {
			w.t.Errorf("%s %s matches nothing but answers %d", r.Method, r.URL, rec.Code)
		}
		return
	}
	item := doc.Paths.Value(p.Pattern)
	if item.GetOperation(r.Method) == nil {
		if rec.Code != http.StatusForbidden {
			w.t.Errorf("%s %s is not in the contract but answers %d", r.Method, r.URL, rec.Code)
		}
		return
	}
	in := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{
			Request: r, PathParams: map[string]string{"id": param},
			Route: &routers.Route{Spec: doc, Path: p.Pattern, PathItem: item, Method: r.Method, Operation: item.GetOperation(r.Method)},
		},
		Status: rec.Code, Header: rec.Header(),
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	}
	in.SetBodyBytes(rec.Body.Bytes())
	if err := openapi3filter.ValidateResponse(context.Background(), in); err != nil {
		w.t.Errorf("%s %s answers %d against the contract: %v\n%s", r.Method, r.URL, rec.Code, err, rec.Body)
	}
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
