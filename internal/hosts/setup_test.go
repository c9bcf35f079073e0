package hosts

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
)

// agent is a host agent that answers as it is told.
type agent struct {
	mu       sync.Mutex
	capacity fleet.HostCapacity
	facts    fleet.HostFacts
	listing  provider.Listing
	err      error
	capErr   error // of a question for the capacity alone
	asked    int   // how often that came
	listed   func()
	claimErr error
	claimed  provider.Claimed
	purged   []string
	opened   []string // URL, token and registry of each provider made
	pins     []string // the certificate of each
	closed   int
}

func goodAgent() *agent {
	facts := fleet.HostFacts{RegistryID: "reg1", MachineID: "m1", Driver: "sim"}
	return &agent{
		capacity: fleet.HostCapacity{CPUs: 4, RamMB: 8192, StorageGB: 100, Arch: "x86_64"},
		facts:    facts,
		listing:  provider.Listing{Facts: facts, Complete: true},
	}
}

func (a *agent) setErr(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// link is a provider of an agent; it is all that hosts uses of one.
type link struct {
	provider.Provider
	a *agent
}

func (l link) Capacity(ctx context.Context) (fleet.HostCapacity, fleet.HostFacts, error) {
	l.a.mu.Lock()
	defer l.a.mu.Unlock()
	l.a.asked++
	if err := errors.Join(l.a.err, l.a.capErr); err != nil {
		return fleet.HostCapacity{}, fleet.HostFacts{}, err
	}
	return l.a.capacity, l.a.facts, ctx.Err()
}

func (l link) List(ctx context.Context) (provider.Listing, error) {
	if l.a.listed != nil {
		l.a.listed()
	}
	l.a.mu.Lock()
	defer l.a.mu.Unlock()
	if l.a.err != nil {
		return provider.Listing{}, l.a.err
	}
	return l.a.listing, ctx.Err()
}

func (l link) Claim(context.Context) (provider.Claimed, error) {
	l.a.mu.Lock()
	defer l.a.mu.Unlock()
	return l.a.claimed, l.a.claimErr
}

func (l link) PurgeFleet(_ context.Context, fleetID string, _ bool) (destroyed, failed int, err error) {
	l.a.mu.Lock()
	defer l.a.mu.Unlock()
	l.a.purged = append(l.a.purged, fleetID)
	return 2, 1, l.a.err
}

func (l link) Close() error {
	l.a.mu.Lock()
	defer l.a.mu.Unlock()
	l.a.closed++
	return nil
}

type fixture struct {
	svc   *Service
	store *state.Store
	agent *agent
}

func setup(t *testing.T) *fixture {
	t.Helper()
	journal := memory.New(memory.Options{})
	store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	key, err := secrets.ParseKey("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{store: store, agent: goodAgent()}
	f.svc, err = New(Config{
		Store: store, Sealer: secrets.NewSealer(key), Logger: slog.New(slog.DiscardHandler), ProbeInterval: DefaultProbeInterval,
		NewProvider: func(h fleet.Host, token string) (provider.Provider, error) {
			f.agent.mu.Lock()
			defer f.agent.mu.Unlock()
			f.agent.opened = append(f.agent.opened, strings.TrimSpace(h.URL+" "+token+" "+h.Facts.RegistryID))
			f.agent.pins = append(f.agent.pins, h.CertSHA256)
			return link{a: f.agent}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := errors.Join(f.svc.Close(), store.Close(context.WithoutCancel(t.Context())))
		if err != nil {
			t.Error(err)
		}
		if f.agent.closed != len(f.agent.opened) {
			t.Errorf("%d of %d providers were closed", f.agent.closed, len(f.agent.opened))
		}
	})
	return f
}

func request(change func(*RegisterRequest)) RegisterRequest {
	r := RegisterRequest{ID: "local", Owner: "k1", Actor: "user:k1", URL: "unix:///run/h.sock", Token: "secret token"}
	if change != nil {
		change(&r)
	}
	return r
}

func (f *fixture) register(t *testing.T, change func(*RegisterRequest)) fleet.Host {
	t.Helper()
	h, err := f.svc.Register(t.Context(), request(change))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (f *fixture) update(t *testing.T, fn func(*state.Tx) error) {
	t.Helper()
	if _, err := f.store.Update(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) events(t *testing.T) (types []string) {
	t.Helper()
	events, err := f.store.Events(t.Context(), state.EventQuery{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		types = append(types, e.Type)
	}
	return types
}

func putVM(tx *state.Tx, id, uid string) error {
	return tx.PutVM(fleet.VM{ID: id, UID: uid, State: fleet.VMStateProvisioning, TaskID: id, HostID: "local", Spec: fleet.Spec{CPUs: 1, RamMB: 64, StorageGB: 1}})
}
