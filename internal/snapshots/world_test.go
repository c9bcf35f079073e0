package snapshots_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/admission"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/keylock"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/pausing"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/fake"
	"github.com/fusevm/fuse/internal/provider/providertest"
	"github.com/fusevm/fuse/internal/quota"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/snapshots"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// world is the services that make, capture and pause environments over a real
// state in memory and one fake host.
type world struct {
	t       *testing.T
	host    *fake.Host
	p       *fake.Provider
	store   *state.Store
	stopper *stopper
	sealer  *secrets.Sealer
	desk    *admission.Desk
	fencer  *providertest.Fleet
	quotas  *quota.Book
	life    *lifecycle.Service
	snaps   *snapshots.Service
	pauses  *pausing.Service
	change  func(*snapshots.Config)
}

// stopper is the store as a process sees it that may be killed.
type stopper struct {
	*state.Store
	mu   sync.Mutex
	left int // updates until the process is dead; negative: it lives on
}

func (s *stopper) Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error) {
	s.mu.Lock()
	dead := s.left == 0
	if s.left > 0 {
		s.left--
	}
	s.mu.Unlock()
	if dead {
		return state.Commit{}, fleet.Errorf(fleet.CodeUnavailable, "killed")
	}
	return s.Store.Update(ctx, fn)
}

func (s *stopper) dieAfter(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = n
}

type hosts struct{ p provider.Provider }

func (h hosts) Provider(id string) (provider.Provider, error) {
	if id != "h1" {
		return nil, fleet.Errorf(fleet.CodeNotFound, "%w", fleet.ErrHostNotFound)
	}
	return h.p, nil
}

func newWorld(t *testing.T, change func(*snapshots.Config)) *world {
	t.Helper()
	key, err := secrets.ParseKey(strings.Repeat("a", 64))
	if err != nil {
		t.Fatal(err)
	}
	journal := memory.New(memory.Options{})
	store, err := state.Open(t.Context(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, store: store, sealer: secrets.NewSealer(key), change: change}
	w.host = fake.New(fake.Options{Capacity: fleet.HostCapacity{CPUs: 100, RamMB: 2048, StorageGB: 1000, VMCount: 100, Arch: fleet.ArchAMD64}})
	w.fencer = providertest.NewFleet()
	w.p = w.host.Provider(w.fencer)
	_, facts, err := w.p.Capacity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.update(func(tx *state.Tx) error {
		return tx.PutHost(fleet.Host{ID: "h1", State: fleet.HostActive, Facts: facts, Capacity: fleet.HostCapacity{CPUs: 100, RamMB: 2048, StorageGB: 1000, VMCount: 100, Arch: fleet.ArchAMD64}})
	})
	w.start()
	t.Cleanup(func() {
		w.close()
		if err := store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error("close store:", err)
		}
	})
	return w
}

func (w *world) start() {
	w.t.Helper()
	w.stopper = &stopper{Store: w.store, left: -1}
	log, locks := slog.New(slog.DiscardHandler), &keylock.Lock{}
	w.quotas = quota.New(quota.Config{
		Store: w.store, Logger: log, More: snapshots.Dimensions(),
		KeyOwner: func(_ *state.ReadTx, id string) (string, bool) { return "alice", id == "ak_1" },
	})
	w.desk = admission.New(admission.Config{Store: w.store, Quotas: w.quotas})
	var err error
	w.life, err = lifecycle.New(lifecycle.Config{
		Store: w.stopper, Providers: hosts{w.p}, Sealer: w.sealer, Logger: log, Admission: w.desk,
		Seed: func(tx *state.ReadTx, spec fleet.Spec, sees func(string) bool) (lifecycle.Seed, error) {
			s, err := snapshots.Seed(tx, spec, sees)
			if err != nil {
				return lifecycle.Seed{}, err
			}
			return lifecycle.Seed{SnapshotID: s.SnapshotID, Digest: s.Digest, HostID: s.HostID}, nil
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	cfg := snapshots.Config{
		Store: w.stopper, Providers: hosts{w.p}, Logger: log, Opener: w.sealer, BootKind: lifecycle.SealKindVMBoot, Locks: locks, Admission: w.desk, Quotas: w.quotas,
		Create: func(ctx context.Context, c snapshots.Child) (*fleet.VM, error) {
			return w.life.Create(ctx, lifecycle.CreateRequest{
				TaskID: c.TaskID, Owner: c.Owner, Actor: c.Actor, Spec: c.Spec, Boot: c.Boot, Idempotency: c.Idempotency,
				Fork: &lifecycle.Fork{Ancestors: c.Ancestors, Live: c.Live},
				Progress: func(u lifecycle.Progress) {
					if u.Read != nil {
						c.Progress(*u.Read)
					}
				},
			})
		},
	}
	if w.change != nil {
		w.change(&cfg)
	}
	if w.snaps, err = snapshots.New(cfg); err != nil {
		w.t.Fatal(err)
	}
	w.pauses, err = pausing.New(pausing.Config{Store: w.stopper, Providers: hosts{w.p}, Admission: w.desk, Logger: log, Locks: locks})
	if err != nil {
		w.t.Fatal(err)
	}
}

// fleet is the id by which the host knows this control plane.
func (w *world) fleet() string {
	f, err := w.fencer.Fence()
	if err != nil {
		w.t.Fatal(err)
	}
	return f.FleetID
}

func (w *world) close() {
	ctx := context.WithoutCancel(w.t.Context())
	for _, c := range []interface{ Close(context.Context) error }{w.snaps, w.pauses, w.life} {
		if err := c.Close(ctx); err != nil {
			w.t.Error("close:", err)
		}
	}
}

func (w *world) update(fn func(*state.Tx) error) {
	w.t.Helper()
	if _, err := w.store.Update(w.t.Context(), fn); err != nil {
		w.t.Fatal(err)
	}
}

// create makes an environment with a secret, a port and a script.
func (w *world) create(task string) *fleet.VM {
	w.t.Helper()
	vm, err := w.life.Create(w.t.Context(), lifecycle.CreateRequest{
		TaskID: task, Owner: "alice", Spec: fleet.Spec{CPUs: 1, RamMB: 512, StorageGB: 4, Image: "minimal", Tags: map[string]string{"k": "v"}, IdleTimeout: time.Hour},
		Boot: fleet.BootOptions{Secrets: map[string]string{"TOKEN": "parent-secret-value"}, StartupScript: "true", Files: map[string][]byte{"/data/a": []byte("one")}},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return vm
}

func (w *world) vm(id string) (vm *fleet.VM) {
	// The closure never fails.
	_ = w.store.View(func(tx *state.ReadTx) error { vm, _ = tx.VMs().Get(id); return nil })
	return vm
}

func (w *world) record(id string) (s *fleet.Snapshot) {
	_ = w.store.View(func(tx *state.ReadTx) error { s, _ = tx.Snapshots().Get(id); return nil })
	return s
}

func (w *world) records() (all []*fleet.Snapshot) {
	_ = w.store.View(func(tx *state.ReadTx) error { all = slices.Collect(tx.Snapshots().All()); return nil })
	return all
}

func (w *world) allocated() (c fleet.HostCapacity) {
	_ = w.store.View(func(tx *state.ReadTx) error {
		h, _ := tx.Hosts().Get("h1")
		c = h.Allocated
		return nil
	})
	return c
}

func (w *world) take(id string, live bool) *fleet.Snapshot {
	w.t.Helper()
	s, err := w.snaps.Take(w.t.Context(), snapshots.TakeRequest{VMID: id, Actor: "user:alice", Live: live})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) write(vm *fleet.VM, path, text string) {
	w.t.Helper()
	env := w.p.Open(provider.Ref{ID: vm.ID, UID: vm.UID})
	if err := env.Upload(w.t.Context(), []fleet.GuestFile{{Path: path, Data: []byte(text)}}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) file(uid, path string) string { return string(w.host.Files(uid)[path].Data) }

func (w *world) destroy(id string) {
	w.t.Helper()
	if err := w.life.Destroy(w.t.Context(), id, fleet.Reason{Actor: "user:alice", Rule: fleet.RuleManualDestroy}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) events(entity string) (types []string) {
	w.t.Helper()
	all, err := w.store.Events(w.t.Context(), state.EventQuery{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range all {
		if e.EntityID == entity {
			types = append(types, e.Type)
		}
		if e.Reason == nil || e.Reason.Actor == "" || e.Reason.Rule == "" {
			w.t.Errorf("event %s does not say whose doing it is", e.Type)
		}
	}
	return types
}

// agree is that records and bytes are the same, and nothing is on its way.
func (w *world) agree(want int) {
	w.t.Helper()
	var ids []string
	for _, s := range w.records() {
		if s.State != fleet.SnapshotStateReady || s.Discard {
			w.t.Errorf("snapshot %s is %s, discard %t: %s", s.SnapshotID, s.State, s.Discard, s.LastError)
		}
		ids = append(ids, s.SnapshotID)
	}
	slices.Sort(ids)
	if has := w.host.Shelf().Artifacts(); !slices.Equal(ids, has) || len(ids) != want {
		w.t.Errorf("records %v, on the host %v, want %d", ids, has, want)
	}
}

// collect does what the loop does with what is unwanted.
func (w *world) collect() {
	w.t.Helper()
	for _, s := range w.records() {
		used := false
		_ = w.store.View(func(tx *state.ReadTx) error {
			for vm := range tx.VMs().All() {
				used = used || vm.Spec.SeedSnapshotID == s.SnapshotID
			}
			return nil
		})
		if s.Discard && s.State != fleet.SnapshotStateCreating || s.Ephemeral && !used {
			if err := w.snaps.Collect(w.t.Context(), s.SnapshotID, s.Revision, fleet.Reason{Actor: fleet.ActorReconcile, Rule: fleet.RuleRetention}); err != nil {
				w.t.Error("collect:", err)
			}
		}
	}
}
