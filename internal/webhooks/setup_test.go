package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// got is one message as the receiver saw it.
type got struct {
	id, typ, vm string
	at          time.Time
	header      http.Header
	body        []byte
}

// receiver stands for the other side. answer decides what it says; nil is 204.
type receiver struct {
	mu     sync.Mutex
	all    []got // also what it refused
	took   []got
	answer func(got) (status int, err error)
	body   string
}

func (r *receiver) RoundTrip(req *http.Request) (*http.Response, error) {
	raw, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Type string `json:"type"`
		Data struct {
			VMID string `json:"vm_id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, err
	}
	g := got{id: req.Header.Get("webhook-id"), typ: doc.Type, vm: doc.Data.VMID, at: time.Now(), header: req.Header.Clone(), body: raw}
	r.mu.Lock()
	answer := r.answer
	r.all = append(r.all, g)
	r.mu.Unlock()
	status := http.StatusNoContent
	if answer != nil {
		if status, err = answer(g); err != nil {
			return nil, err
		}
	}
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	if status/100 == 2 {
		r.mu.Lock()
		r.took = append(r.took, g)
		r.mu.Unlock()
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(r.body)), Request: req}, nil
}

func (r *receiver) set(answer func(got) (int, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *receiver) list() (all, took []got) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]got(nil), r.all...), append([]got(nil), r.took...)
}

// world is a service over the real state.
type world struct {
	t        testing.TB
	store    *state.Store
	receiver *receiver
	svc      *Service
	log      *bytes.Buffer
}

func newWorld(t testing.TB, opts ...func(*Config)) *world {
	t.Helper()
	store, sealer := storetest.OpenSealed(t, func(c *state.Config) { c.MaxEventsInMemory = 64 })
	w := &world{t: t, store: store, receiver: &receiver{}, log: &bytes.Buffer{}}
	cfg := Config{Store: store, Sealer: sealer, Logger: slog.New(slog.DiscardHandler), Transport: w.receiver}
	for _, o := range opts {
		o(&cfg)
	}
	var err error
	if w.svc, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return w
}

// run starts sending until the returned function is called or the test ends.
func (w *world) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.svc.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				w.t.Errorf("run ended with %v", err)
			}
		})
	}
	w.t.Cleanup(stop)
	return stop
}

func (w *world) hook(types ...string) (fleet.Webhook, string) {
	w.t.Helper()
	h, secret, err := w.svc.Create(context.Background(), Request{
		URL: new("https://receiver.example/hook"), Filter: &fleet.EventFilter{Types: types}, Owner: "ann", Actor: "user:ann",
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return h, secret
}

func (w *world) get(id string) fleet.Webhook {
	w.t.Helper()
	h, err := w.svc.Get(id)
	if err != nil {
		w.t.Fatal(err)
	}
	return h
}

// emit commits one event of an environment and returns its number.
func (w *world) emit(vm, typ string) uint64 {
	w.t.Helper()
	c, err := w.store.Update(context.Background(), func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: vm, UID: "u-" + vm, Type: typ, Owner: "ann"})
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return c.Events[0].Seq
}

func (w *world) events(types ...string) (out []fleet.Event) {
	w.t.Helper()
	all, err := w.store.Events(context.Background(), state.EventQuery{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range all {
		for _, typ := range types {
			if e.Type == typ {
				out = append(out, e)
			}
		}
	}
	return out
}

func (w *world) deliveries(id string, s fleet.DeliveryState) []fleet.Delivery {
	w.t.Helper()
	list, _, err := w.svc.Deliveries(id, "", 10_000, s)
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

func messageID(h fleet.Webhook, seq uint64) string { return fmt.Sprintf("msg_%s_%020d", h.ID, seq) }
