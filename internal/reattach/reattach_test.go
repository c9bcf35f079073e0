package reattach_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/fake"
	"github.com/fusevm/fuse/internal/provider/providertest"
	"github.com/fusevm/fuse/internal/reattach"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// sealer keeps what it seals readable, unless it is told that the key is wrong.
type sealer struct{ wrong bool }

func (s sealer) Open(kind, id string, sealed []byte) ([]byte, error) {
	plain, ok := strings.CutPrefix(string(sealed), kind+" "+id+" ")
	if s.wrong || !ok {
		return nil, errors.New("wrong key for hunter2")
	}
	return []byte(plain), nil
}

type world struct {
	t     *testing.T
	store *state.Store
	host  *fake.Host
	p     provider.Provider
	seal  sealer

	mu      sync.Mutex
	drained []string
}

func (w *world) Provider(string) (provider.Provider, error) { return w.p, nil }

func (w *world) ResumeDrain(_ context.Context, _, uid string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drained = append(w.drained, uid)
	return nil
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, store: storetest.OpenOn(t, memory.New(memory.Options{})), host: fake.New(fake.Options{})}
	w.p = w.host.Provider(providertest.NewFleet())
	if _, err := w.store.Update(t.Context(), func(tx *state.Tx) error {
		return tx.PutHost(fleet.Host{ID: "h", State: fleet.HostActive, Capacity: fleet.HostCapacity{CPUs: 1 << 20, RamMB: 1 << 30, StorageGB: 1 << 20, VMCount: 1 << 20}})
	}); err != nil {
		t.Fatal(err)
	}
	return w
}

// running makes a VM and its row; secrets may be nil.
func (w *world) running(uid string, secrets map[string]string) *fleet.VM {
	w.t.Helper()
	ref := provider.Ref{ID: "fuse-" + uid, UID: uid, Generation: 1, OpID: uid}
	if _, err := w.p.Create(w.t.Context(), provider.CreateRequest{Ref: ref, Spec: fleet.Spec{CPUs: 1, RamMB: 1}}); err != nil {
		w.t.Fatal(err)
	}
	boot, err := json.Marshal(fleet.BootOptions{Secrets: secrets})
	if err != nil {
		w.t.Fatal(err)
	}
	vm := fleet.VM{
		ID: ref.ID, UID: uid, Generation: 1, TaskID: uid, HostID: "h", State: fleet.VMStateProvisioning, Spec: fleet.Spec{CPUs: 1, RamMB: 1},
		AuthTokenSealed: []byte("token " + uid + " t0ken"), BootSealed: fmt.Appendf(nil, "boot %s %s", uid, boot),
	}
	for _, s := range []fleet.VMState{fleet.VMStateProvisioning, fleet.VMStateRunning} {
		vm.State = s
		if _, err := w.store.Update(w.t.Context(), func(tx *state.Tx) error { return tx.PutVM(vm) }); err != nil {
			w.t.Fatal(err)
		}
	}
	return &vm
}

func (w *world) reattach(atOnce int, vms ...*fleet.VM) {
	w.t.Helper()
	svc, err := reattach.New(reattach.Config{
		Store: w.store, Providers: w, Sealer: w.seal, Drains: w, TokenKind: "token", BootKind: "boot", AtOnce: atOnce,
		Secrets: func(s map[string]string, _ fleet.EgressSpec) map[string]string { return s },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	svc.Reattach(w.t.Context(), vms)
}

// told lists events as "type uid payload error".
func (w *world) told() (out []string) {
	events, err := w.store.Events(w.t.Context(), state.EventQuery{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range events {
		if e.EntityType == fleet.EntitySecrets {
			out = append(out, strings.TrimSpace(e.Type+" "+e.UID+" "+string(e.Payload)+e.Error))
		}
	}
	slices.Sort(out)
	return out
}

func (w *world) secrets(uid string) string {
	return string(w.host.Files(uid)[fleet.FuseSecretsPath].Data)
}

func TestSecretsAreHandedOverAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		a, b := w.running("A", map[string]string{"KEY": "hunter2", "B": "x"}), w.running("B", nil)
		d := *w.running("D", map[string]string{"K": "v"})
		d.State = fleet.VMStateDraining
		w.reattach(0, a, b, &d)
		if got := w.secrets("A"); got != `{"B":"x","KEY":"hunter2"}` {
			t.Errorf("A has %q", got)
		}
		if w.secrets("B") != "" || w.secrets("D") != "" {
			t.Error("an environment without secrets, or one that drains, was given some")
		}
		if want := []string{`secrets.recovered A {"count":2,"names":["B","KEY"]}`}; !slices.Equal(w.told(), want) {
			t.Errorf("told %q", w.told())
		}
		if !slices.Equal(w.drained, []string{"D"}) {
			t.Errorf("drains gone on with: %v", w.drained)
		}
	})
}

func TestFailuresEndNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		vm := w.running("A", map[string]string{"KEY": "hunter2"})
		away := fleet.Wrap(fleet.CodeUnavailable, errors.New("hunter2"), "the guest does not answer")
		w.host.Fail(fake.Upload, away)
		w.host.Fail(fake.Upload, away)
		began := time.Now()
		w.reattach(0, vm) // the third try works out
		if took := time.Since(began); w.secrets("A") == "" || took != 6*time.Second {
			t.Errorf("after %s the guest has %q", took, w.secrets("A"))
		}
		w.host.Fail(fake.Upload, fleet.Errorf(fleet.CodeConflict, "it has stopped"))
		w.reattach(0, vm)
		w.seal.wrong = true
		w.reattach(0, vm)
		want := []string{
			`secrets.recovered A {"count":1,"names":["KEY"]}`,
			"secrets.recovery_failed A it has stopped",
			"secrets.recovery_failed A its token cannot be read with this server's key",
		}
		if got := w.told(); !slices.Equal(got, want) {
			t.Errorf("told %q", got)
		}
		if len(w.host.UIDs()) != 1 {
			t.Error("the environment is gone")
		}
	})
}

// A thousand environments are taken back side by side, within the bound, and
// told of in few commits.
func TestManyAreTakenBackTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		var vms []*fleet.VM
		for i := range 1000 {
			vms = append(vms, w.running(fmt.Sprintf("U%04d", i), map[string]string{"K": "v"}))
		}
		w.host.Latency(fake.Upload, time.Second)
		before, _ := w.store.Head()
		began := time.Now()
		w.reattach(50, vms...)
		if took := time.Since(began); took != 20*time.Second {
			t.Errorf("1000 uploads of a second, 50 at a time, took %s", took)
		}
		after, _ := w.store.Head()
		if n := after - before; n > 6 || len(w.told()) != 1000 {
			t.Errorf("%d events in %d commits", len(w.told()), n)
		}
	})
}

func TestItEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		vm := w.running("A", map[string]string{"K": "v"})
		w.host.Latency(fake.Upload, time.Hour)
		svc, err := reattach.New(reattach.Config{
			Store: w.store, Providers: w, Sealer: w.seal, Drains: w, TokenKind: "token", BootKind: "boot", AtOnce: 1,
			Secrets: func(s map[string]string, _ fleet.EgressSpec) map[string]string { return s },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		svc.Reattach(ctx, []*fleet.VM{vm, vm, vm})
		if took := time.Since(began); took != time.Second || len(w.told()) != 0 {
			t.Errorf("ended after %s, told %q", took, w.told())
		}
	})
	if _, err := reattach.New(reattach.Config{}); err == nil {
		t.Error("a service of nothing")
	}
}
