package lifecycle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/testkit"
)

// dice is a source of chance that several goroutines share; the order in
// which they draw is part of the chance.
type dice struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (d *dice) n(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.r.IntN(n)
}

func (d *dice) hits(percent int) bool                 { return d.n(100) < percent }
func (d *dice) upTo(most time.Duration) time.Duration { return time.Duration(d.n(int(most))) }

// rough is a host that is slow, refuses and loses answers by chance until it
// is told to behave.
type rough struct {
	d    *dice
	mu   sync.Mutex
	calm bool
}

func (r *rough) behave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calm = true
}

func (r *rough) call(ctx context.Context, percent int) error {
	if err := pause(ctx, r.d.upTo(3*time.Second)); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.calm && r.d.hits(percent) {
		return fleet.Wrap(fleet.CodeUnavailable, provider.ErrNoAnswer, "the host did not answer")
	}
	return nil
}

func (r *rough) arrange(h *host) {
	h.create = func(ctx context.Context, _ provider.CreateRequest) error { return r.call(ctx, 10) }
	h.created = func(ctx context.Context, _ provider.CreateRequest) error { return r.call(ctx, 10) }
	h.upload = func(ctx context.Context, _ []fleet.GuestFile) error { return r.call(ctx, 5) }
	h.destroy = func(ctx context.Context, _ provider.Ref) error { return r.call(ctx, 30) }
	h.drain = func(ctx context.Context, _ string) (fleet.ExecStatus, error) {
		return fleet.ExecStatus{}, r.call(ctx, 10)
	}
}

// acked is what the service has promised to its callers.
type acked struct {
	mu   sync.Mutex
	made map[string]string // uid to VM id of creates that answered with success
	gone map[string]bool   // uids that were running when a destroy of them answered nil
}

// Several callers make, drain, complete and destroy the same few environments
// while the host and the store misbehave. In the end host and state agree, and
// nothing that was acknowledged is forgotten.
func TestInterleavings(t *testing.T) {
	for i := range testkit.Count(150, 20_000) {
		t.Run(fmt.Sprint("seed ", i), func(t *testing.T) {
			bubble(t, func(t *testing.T) { interleave(t, uint64(i)) })
		})
	}
}

func interleave(t *testing.T, seed uint64) {
	d := &dice{r: rand.New(rand.NewPCG(seed, 0))}
	down := &outage{}
	f := setup(t, func(c *Config) { down.Store = c.Store; c.Store = down; c.Limits.Creates = 2 })
	r := &rough{d: d}
	r.arrange(f.host)
	a := &acked{made: map[string]string{}, gone: map[string]bool{}}
	var callers sync.WaitGroup
	for range 5 {
		callers.Go(func() {
			for range 6 {
				f.act(t, d, a)
			}
		})
	}
	callers.Go(func() {
		for range 4 {
			_ = pause(t.Context(), d.upTo(10*time.Second))
			down.set(true)
			_ = pause(t.Context(), d.upTo(2*time.Second))
			down.set(false)
		}
	})
	callers.Wait()
	r.behave()
	f.converge(t)
	f.settle(t)
	f.wantAgreement(t)
	f.wantKept(t, a)
}

// act is one random thing that a caller does.
func (f *fixture) act(t *testing.T, d *dice, a *acked) {
	ctx, cancel := context.WithTimeout(t.Context(), d.upTo(20*time.Second))
	defer cancel()
	task := []string{"a", "b", "c"}[d.n(3)]
	id := "fuse-" + task
	_ = pause(ctx, d.upTo(2*time.Second))
	switch d.n(6) {
	case 0, 1:
		if vm, err := f.svc.Create(ctx, CreateRequest{TaskID: task, Boot: fleet.BootOptions{StartupScript: "true"}}); err == nil {
			a.mu.Lock()
			a.made[vm.UID] = vm.ID
			a.mu.Unlock()
		}
	case 2:
		_, _ = f.svc.CreateAsync(ctx, CreateRequest{TaskID: task})
	case 3:
		before := f.find(id)
		if err := f.svc.Destroy(ctx, id, manual("user:a")); err == nil && before != nil {
			a.mu.Lock()
			a.gone[before.UID] = true
			a.mu.Unlock()
		}
	case 4:
		if d.hits(50) {
			_, _ = f.svc.Drain(ctx, id, "user:a")
		} else {
			_, _ = f.svc.Complete(ctx, id, "user:a", "request r1")
		}
	case 5:
		if vm := f.find(id); vm != nil {
			_ = f.svc.DestroyLife(ctx, id, vm.UID, manual(fleet.ActorReconcile))
		}
	}
}

// converge does what the loop does about rows that are destroying.
func (f *fixture) converge(t *testing.T) {
	t.Helper()
	for range 100 {
		busy := false
		var ending []*fleet.VM
		f.view(func(tx *state.ReadTx) {
			for vm := range tx.VMs().All() {
				busy = busy || vm.State == fleet.VMStateProvisioning
				if vm.State == fleet.VMStateDestroying {
					ending = append(ending, vm)
				}
			}
		})
		if !busy && len(ending) == 0 {
			return
		}
		for _, vm := range ending {
			if err := f.svc.DestroyLife(t.Context(), vm.ID, vm.UID, manual(fleet.ActorReconcile)); err != nil {
				t.Errorf("converge: %v", err)
			}
		}
		_ = pause(t.Context(), time.Second)
	}
	t.Error("it does not come to rest")
}

func (f *fixture) wantAgreement(t *testing.T) {
	t.Helper()
	tracked := map[string]string{}
	var used fleet.HostCapacity
	f.view(func(tx *state.ReadTx) {
		h, _ := tx.Hosts().Get("local")
		for vm := range tx.VMs().All() {
			tracked[vm.ID] = vm.UID
			used = used.Plus(fleet.Demand(vm.Spec, h.Facts))
			if vm.State != fleet.VMStateRunning && vm.State != fleet.VMStateDraining {
				t.Errorf("%s rests %s", vm.ID, vm.State)
			}
			if task, ok := tx.Tasks().Get(vm.TaskID); !ok || task.UID != vm.UID || task.RunStatus != fleet.TaskRunRunning {
				t.Errorf("%s has the task %+v", vm.ID, task)
			}
		}
		for task := range tx.Tasks().All() {
			if _, alive := tx.VMs().GetUID(task.UID); !alive && !task.RunStatus.Done() {
				t.Errorf("task %s is %s and its environment is gone", task.TaskID, task.RunStatus)
			}
		}
		for life := range tx.Lives().All() {
			f.wantTerminal(t, life.UID, life.State)
			if life.Reason.Rule == "" || life.Reason.Actor == "" {
				t.Errorf("%s ended without a reason", life.UID)
			}
		}
		if diff := cmp.Diff(used, h.Allocated); diff != "" {
			t.Error("allocated:", diff)
		}
	})
	if diff := cmp.Diff(tracked, f.host.has()); diff != "" {
		t.Error("state and host differ:", diff)
	}
}

func (f *fixture) wantKept(t *testing.T, a *acked) {
	t.Helper()
	f.view(func(tx *state.ReadTx) {
		for uid, id := range a.made {
			_, alive := tx.VMs().GetUID(uid)
			if _, ended := tx.Lives().GetUID(uid); alive == ended {
				t.Errorf("acknowledged create of %s (%s): alive %v, ended %v", id, uid, alive, ended)
			}
		}
		for uid := range a.gone {
			if _, alive := tx.VMs().GetUID(uid); alive {
				t.Errorf("acknowledged destroy of %s: it is alive", uid)
			}
		}
	})
}
