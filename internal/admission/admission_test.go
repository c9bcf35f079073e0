package admission_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/admission"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/quota"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func open(t testing.TB, hosts int, edit func(i int, h *fleet.Host)) *state.Store {
	t.Helper()
	journal := memory.New(memory.Options{})
	store, err := state.Open(context.Background(), state.Config{Journal: journal, Lease: journal, Candidate: state.Candidate{Name: "test"}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	_, err = store.Update(t.Context(), func(tx *state.Tx) error {
		for i := range hosts {
			h := fleet.Host{
				ID: fmt.Sprintf("host-%05d", i), State: fleet.HostActive, Backend: fleet.BackendQEMU, Region: "eu",
				Capacity: fleet.HostCapacity{CPUs: 8, RamMB: 16384, StorageGB: 100, VMCount: 10},
			}
			if edit != nil {
				edit(i, &h)
			}
			if err := tx.PutHost(h); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// admit asks and, if it is let in, writes the row in the same Update.
func admit(store *state.Store, desk *admission.Desk, r admission.Request, id string) (admission.Admitted, error) {
	var got admission.Admitted
	q := desk.Prepare(r)
	_, err := store.Update(context.Background(), func(tx *state.Tx) error {
		var err error
		if got, err = q.Admit(&tx.ReadTx); err != nil {
			return err
		}
		vm := fleet.VM{ID: id, UID: "uid-" + id, TaskID: id, Generation: 1, Owner: r.Owner, Spec: got.Spec, State: fleet.VMStateProvisioning, HostID: got.Host.ID}
		return tx.PutVM(vm)
	})
	return got, err
}

var small = fleet.Spec{CPUs: 1, RamMB: 512, StorageGB: 1}

func TestEveryKindAsksTheSameDesk(t *testing.T) {
	for _, kind := range []admission.Kind{admission.Create, admission.Fork, admission.Restore, admission.Migrate, admission.Resume} {
		t.Run(string(kind), func(t *testing.T) {
			store := open(t, 2, nil)
			desk := admission.New(admission.Config{Store: store, Unreachable: func() map[string]string { return map[string]string{"host-00000": "silent"} }})
			for i := range 8 {
				got, err := admit(store, desk, admission.Request{Kind: kind, Spec: small, Owner: "alice"}, fmt.Sprint("vm", i))
				if err != nil || got.Host.ID != "host-00001" {
					t.Fatalf("%d: got %+v, %v", i, got.Decision, err)
				}
			}
			if _, err := admit(store, desk, admission.Request{Kind: kind, Spec: small, Owner: "alice"}, "more"); !errors.Is(err, fleet.ErrNoCapacity) {
				t.Errorf("the ninth got %v", err)
			}
		})
	}
}

// Moving and resuming bring no environment and no create in flight along;
// adding one does.
func TestWhoPays(t *testing.T) {
	for kind, pays := range map[admission.Kind]bool{
		admission.Create: true, admission.Fork: true, admission.Restore: true, admission.Migrate: false, admission.Resume: false,
	} {
		store := open(t, 1, nil)
		desk := admission.New(admission.Config{Store: store, Quotas: quota.New(quota.Config{
			Store: store, Logger: slog.New(slog.DiscardHandler), Defaults: quota.Amounts{quota.Environments: 1, quota.Creates: 1},
		})})
		if _, err := admit(store, desk, admission.Request{Kind: admission.Create, Spec: small, Owner: "alice"}, "first"); err != nil {
			t.Fatal(err)
		}
		holder := ""
		if !pays {
			holder = "first"
		}
		e, err := desk.Explain(t.Context(), admission.Request{Kind: kind, Spec: small, Owner: "alice", Holder: holder})
		if err != nil || (e.Quota != nil) != pays {
			t.Errorf("%s: quota says %v, %v", kind, e.Quota, err)
		}
		if pays && !errors.Is(e.Quota, fleet.ErrQuotaExceeded) {
			t.Errorf("%s: %v", kind, e.Quota)
		}
	}
}

func TestHintsAndRefusals(t *testing.T) {
	store := open(t, 3, nil)
	desk := admission.New(admission.Config{Store: store, ImageHosts: func(image string) map[string]bool {
		return map[string]bool{"host-00002": image == "big"}
	}})
	got, err := admit(store, desk, admission.Request{Kind: admission.Create, Spec: fleet.Spec{CPUs: 1, RamMB: 512, Image: "big"}}, "a")
	if err != nil || got.Host.ID != "host-00002" || !got.Decision.ImageLocal || got.Decision.Tries != 0 {
		t.Errorf("got %+v, %v", got.Decision, err)
	}
	refused := map[string]string{"host-00002": "full", "host-00000": "full"}
	got, err = admit(store, desk, admission.Request{Kind: admission.Create, Spec: fleet.Spec{CPUs: 1, RamMB: 512, Image: "big"}, Refused: refused}, "b")
	if err != nil || got.Host.ID != "host-00001" || got.Decision.Tries != 3 {
		t.Errorf("got %+v, %v", got.Decision, err)
	}
	if diff := cmp.Diff([]string{"host host-00000 refused to make it: full", "host host-00002 refused to make it: full"}, admission.Named(got.Placement)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"asked refused 2"}, admission.Told(got.Placement).Refused); diff != "" {
		t.Error("told to the owner:", diff)
	}
}

func TestDevicesAreBound(t *testing.T) {
	store := open(t, 1, func(_ int, h *fleet.Host) {
		h.Capacity.GPUs = 2
		h.Capacity.GPUDevices = []fleet.GPUDevice{{UUID: "g2", Model: "A100"}, {UUID: "g1", Model: "A100"}}
	})
	desk := admission.New(admission.Config{Store: store})
	spec := small
	spec.GPUs = 1
	for i, want := range []string{"g1", "g2"} {
		got, err := admit(store, desk, admission.Request{Kind: admission.Create, Spec: spec}, fmt.Sprint("vm", i))
		if err != nil || len(got.Spec.GPUUUIDs) != 1 || got.Spec.GPUUUIDs[0] != want {
			t.Fatalf("got %v, %v", got.Spec.GPUUUIDs, err)
		}
	}
	if _, err := admit(store, desk, admission.Request{Kind: admission.Create, Spec: spec}, "vm2"); !errors.Is(err, fleet.ErrNoCapacity) {
		t.Errorf("a third card: %v", err)
	}
}

func TestExplainNamesEveryHost(t *testing.T) {
	store := open(t, 20, func(i int, h *fleet.Host) {
		if i%2 == 0 {
			h.Region = "us"
		}
	})
	desk := admission.New(admission.Config{Store: store})
	before, _ := store.Head()
	e, err := desk.Explain(t.Context(), admission.Request{Kind: admission.Create, Spec: fleet.Spec{CPUs: 1, RamMB: 1, Region: "eu"}})
	if err != nil || e.Err != nil || len(e.Candidates) != 10 || len(e.Refusals) != 10 || e.Decision.HostID != "host-00001" {
		t.Errorf("got %d candidates, %d refusals, %+v, %v, %v", len(e.Candidates), len(e.Refusals), e.Decision, e.Err, err)
	}
	if named := admission.Named(e.Placement); len(named) != 10 {
		t.Errorf("named %v", named)
	}
	if told := admission.Told(e.Placement); len(told.Refused) != 1 || told.Refused[0] != "region refused 10" {
		t.Errorf("told %v", told.Refused)
	}
	if after, _ := store.Head(); after != before {
		t.Error("explaining changed the state")
	}
}

// BenchmarkAdmit is the whole decision as a create makes it, hosts read from
// the state included.
func BenchmarkAdmit(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			store := open(b, n, func(i int, h *fleet.Host) {
				h.Labels = map[string]string{"disk": "ssd"}
				h.Capacity.CPUs = 8 + i%8
			})
			desk := admission.New(admission.Config{Store: store})
			q := desk.Prepare(admission.Request{Kind: admission.Create, Spec: fleet.Spec{CPUs: 2, RamMB: 1024, StorageGB: 4, Labels: map[string]string{"disk": "ssd"}}})
			b.ReportAllocs()
			for b.Loop() {
				if err := store.View(func(tx *state.ReadTx) error {
					_, err := q.Admit(tx)
					return err
				}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
