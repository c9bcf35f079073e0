package pausing

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/admission"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// hosts are one that hangs and one that resumes at once.
type hosts struct {
	mu    sync.Mutex
	calls []string
}

func (h *hosts) Provider(string) (provider.Provider, error) { return host{h: h}, nil }

type host struct {
	provider.Provider
	h *hosts
}

func (h host) Open(ref provider.Ref) provider.Environment { return &environment{h: h.h, id: ref.ID} }

type environment struct {
	provider.Environment
	h  *hosts
	id string
}

func (e *environment) Pause(context.Context, func(provider.SnapshotProgress)) (int64, error) {
	return 0, nil
}

func (e *environment) Resume(ctx context.Context, _ func(provider.SnapshotProgress)) (provider.Resumed, error) {
	e.h.mu.Lock()
	e.h.calls = append(e.h.calls, e.id)
	e.h.mu.Unlock()
	if e.id[:4] == "hang" {
		<-ctx.Done()
		return provider.Resumed{}, context.Cause(ctx)
	}
	return provider.Resumed{}, nil
}

// A host that hangs holds up its own environments and nobody else's.
func TestAHostThatHangsHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		journal := memory.New(memory.Options{})
		store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = store.Close(context.WithoutCancel(t.Context())) }()
		put := func(id, host string) {
			for _, now := range []fleet.VMState{fleet.VMStateProvisioning, fleet.VMStateRunning} {
				vm := fleet.VM{ID: id, UID: id, TaskID: id, HostID: host, State: now, Generation: 1}
				if now == fleet.VMStateRunning {
					vm.Paused = &fleet.Standstill{Activity: fleet.ActivityResuming, Reason: fleet.Reason{Actor: "user:x", Rule: fleet.RuleRequested}, At: time.Now(), Op: "o"}
				}
				update(t, store, func(tx *state.Tx) error { return tx.PutVM(vm) })
			}
		}
		for _, id := range []string{"dead", "well"} {
			update(t, store, func(tx *state.Tx) error {
				return tx.PutHost(fleet.Host{ID: id, State: fleet.HostActive, Capacity: fleet.HostCapacity{CPUs: 100, RamMB: 1 << 20, VMCount: 100}})
			})
		}
		for _, id := range []string{"hang-1", "hang-2", "hang-3", "hang-4", "hang-5", "hang-6"} {
			put(id, "dead")
		}
		h := &hosts{}
		s, err := New(Config{Store: store, Providers: h, Admission: admission.New(admission.Config{Store: store}), Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		<-time.After(time.Second)
		put("other", "well")
		<-time.After(time.Minute)
		h.mu.Lock()
		calls := slices.Clone(h.calls)
		h.mu.Unlock()
		if len(calls) != perHost+1 || !slices.Contains(calls, "other") {
			t.Errorf("asked %v", calls)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for _, id := range h.calls { // an end of this process is no trouble of theirs
			if err := store.View(func(tx *state.ReadTx) error {
				if vm, ok := tx.VMs().Get(id); !ok || vm.Paused != nil && vm.Paused.LastError != "" {
					t.Errorf("of %s it is told: %+v", id, vm.Paused)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

// What is used by the time it is to be paused is not paused, and counts as none.
func TestAPauseThatIsGivenUpIsNoPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		journal := memory.New(memory.Options{})
		store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = store.Close(context.WithoutCancel(t.Context())) }()
		counted := 0
		s, err := New(Config{
			Store: store, Providers: &hosts{}, Admission: admission.New(admission.Config{Store: store}), Logger: slog.New(slog.DiscardHandler),
			Done: func(string, time.Duration, error) { counted++ },
		})
		if err != nil {
			t.Fatal(err)
		}
		used := errors.New("it is used")
		err = s.PauseLife(t.Context(), "vm", "uid", fleet.Reason{Actor: fleet.ActorReconcile, Rule: fleet.RuleIdleTimeout}, func() (func(), error) { return nil, used })
		if !errors.Is(err, used) || counted != 0 {
			t.Errorf("%v, counted %d", err, counted)
		}
		err = s.PauseLife(t.Context(), "vm", "uid", fleet.Reason{Actor: fleet.ActorReconcile, Rule: fleet.RuleIdleTimeout}, func() (func(), error) { return func() {}, nil })
		if !errors.Is(err, fleet.ErrVMNotFound) || counted != 1 {
			t.Errorf("%v, counted %d", err, counted)
		}
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

func update(t *testing.T, store *state.Store, fn func(*state.Tx) error) {
	t.Helper()
	if _, err := store.Update(t.Context(), fn); err != nil {
		t.Fatal(err)
	}
}
