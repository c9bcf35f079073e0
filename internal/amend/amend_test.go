package amend

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// setup is a store with the environment fuse-a of ann, an hour old.
func setup(t *testing.T, st fleet.VMState) (*Service, *state.Store) {
	t.Helper()
	journal := memory.New(memory.Options{})
	store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	vm := fleet.VM{
		ID: "fuse-a", UID: "u", TaskID: "a", Owner: "ann", CreatedAt: time.Now(),
		Spec: fleet.Spec{MaxRuntime: 2 * time.Hour, Tags: map[string]string{"team": "blue", "run": "7"}},
	}
	for _, vm.State = range []fleet.VMState{fleet.VMStateProvisioning, st} {
		if _, err := store.Update(t.Context(), func(tx *state.Tx) error { return tx.PutVM(vm) }); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(time.Hour)
	return New(store), store
}

func stored(t *testing.T, store *state.Store) (spec fleet.Spec, events []fleet.Event) {
	t.Helper()
	if err := store.View(func(tx *state.ReadTx) error {
		vm, _ := tx.VMs().Get("fuse-a")
		spec = vm.Spec
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	events, err := store.Events(t.Context(), state.EventQuery{})
	if err != nil {
		t.Fatal(err)
	}
	return spec, events
}

func TestAmend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, store := setup(t, fleet.VMStateRunning)
		if err := s.Amend(t.Context(), "fuse-a", "user:ann", Request{
			MaxRuntime: new(4 * time.Hour), Tags: map[string]*string{"team": new("red"), "run": nil, "gone": nil, "new": new("x")},
		}); err != nil {
			t.Fatal(err)
		}
		spec, events := stored(t, store)
		want := fleet.Spec{MaxRuntime: 4 * time.Hour, Tags: map[string]string{"team": "red", "new": "x"}}
		if diff := cmp.Diff(want, spec); diff != "" {
			t.Error(diff)
		}
		if len(events) != 1 || events[0].Type != fleet.EventVMAmended || events[0].Reason.Actor != "user:ann" ||
			string(events[0].Payload) != `{"max_runtime_seconds":14400,"tags":{"new":"x","team":"red"}}` {
			t.Errorf("events %+v", events)
		}
		if err := s.Amend(t.Context(), "fuse-a", "user:ann", Request{MaxRuntime: new(time.Duration), IdleTimeout: new(time.Minute)}); err != nil {
			t.Fatal(err)
		}
		want.MaxRuntime, want.IdleTimeout = 0, time.Minute
		if spec, _ := stored(t, store); cmp.Diff(want, spec) != "" {
			t.Error(cmp.Diff(want, spec))
		}
	})
}

func TestRefusals(t *testing.T) {
	many := map[string]*string{}
	for i := range fleet.MaxTags {
		many[fmt.Sprint("t", i)] = new("v")
	}
	synctest.Test(t, func(t *testing.T) {
		s, store := setup(t, fleet.VMStateRunning)
		before, _ := stored(t, store)
		bob := auth.With(t.Context(), auth.Principal{Name: "bob", Role: fleet.RoleUser})
		for name, tt := range map[string]struct {
			ctx  context.Context
			id   string
			req  Request
			code fleet.Code
		}{
			"nothing":         {t.Context(), "fuse-a", Request{}, fleet.CodeInvalidArgument},
			"unknown":         {t.Context(), "fuse-b", Request{IdleTimeout: new(time.Hour)}, fleet.CodeNotFound},
			"another's":       {bob, "fuse-a", Request{IdleTimeout: new(time.Hour)}, fleet.CodeNotFound},
			"passed already":  {t.Context(), "fuse-a", Request{MaxRuntime: new(time.Hour)}, fleet.CodeInvalidArgument},
			"negative":        {t.Context(), "fuse-a", Request{MaxRuntime: new(-time.Hour)}, fleet.CodeInvalidArgument},
			"too short":       {t.Context(), "fuse-a", Request{IdleTimeout: new(time.Second)}, fleet.CodeInvalidArgument},
			"a tag's form":    {t.Context(), "fuse-a", Request{Tags: map[string]*string{"a b": new("c")}}, fleet.CodeInvalidArgument},
			"a tag's value":   {t.Context(), "fuse-a", Request{Tags: map[string]*string{"a": new("")}}, fleet.CodeInvalidArgument},
			"too many (2+32)": {t.Context(), "fuse-a", Request{Tags: many}, fleet.CodeInvalidArgument},
		} {
			var got *fleet.Error
			if err := s.Amend(tt.ctx, tt.id, "user:x", tt.req); !errors.As(err, &got) || got.Code != tt.code {
				t.Errorf("%s: %v, want %s", name, err, tt.code)
			}
		}
		after, events := stored(t, store)
		if diff := cmp.Diff(before, after); diff != "" || len(events) != 0 {
			t.Errorf("a refused change left something: %s, %v", diff, events)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s, _ := setup(t, fleet.VMStateDestroying)
		var got *fleet.Error
		if err := s.Amend(t.Context(), "fuse-a", "user:x", Request{IdleTimeout: new(time.Hour)}); !errors.As(err, &got) || got.Code != fleet.CodeConflict {
			t.Errorf("one that is being destroyed: %v", err)
		}
	})
}
