package hostd_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd"
	"github.com/fusevm/fuse/internal/hostd/sim"
	"github.com/fusevm/fuse/internal/testkit"
)

// oracle remembers what the agent has said, and knows what it may say next.
type oracle struct {
	t      *testing.T
	mu     sync.Mutex
	acked  map[string]string // uid to VM id: created, and no destroy asked for
	doomed map[string]bool   // uids that somebody asked to destroy
	gone   map[string]bool   // uids whose destroy was answered
}

// created takes note of an acknowledged create; wasGone says whether a
// destroy of the uid had been answered before the create was asked for.
func (o *oracle) created(id hostd.Ref, wasGone bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if wasGone {
		o.t.Errorf("%s was created after its destroy had been answered", id.UID)
	}
	if o.doomed[id.UID] {
		return
	}
	for uid, vm := range o.acked {
		if vm == id.VMID && uid != id.UID {
			o.t.Errorf("%s has two lives: %s and %s", vm, uid, id.UID)
		}
	}
	o.acked[id.UID] = id.VMID
}

func (o *oracle) asked(id hostd.Ref) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.doomed[id.UID] = true
	delete(o.acked, id.UID)
}

func (o *oracle) destroyed(id hostd.Ref) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.gone[id.UID] = true
}

func (o *oracle) isGone(id hostd.Ref) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.gone[id.UID]
}

// check compares a listing that was taken while nothing was under way.
func (o *oracle) check(r *rig) {
	o.t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	listed := map[string]bool{}
	for _, v := range r.listing().VMs {
		listed[v.UID] = true
		if o.gone[v.UID] {
			o.t.Errorf("%s is listed after its destroy was answered", v.UID)
		}
	}
	for uid := range o.acked {
		if !listed[uid] {
			o.t.Errorf("acknowledged %s is not listed", uid)
		}
	}
}

// actor makes random calls for a few VM ids that all actors share.
type actor struct {
	r     *rig
	o     *oracle
	rng   *rand.Rand
	round int
}

func (a *actor) ref() hostd.Ref {
	vm := a.rng.IntN(4)
	return ref(fmt.Sprint("vm-", vm), fmt.Sprintf("u%d-%d-%d", a.round, vm, a.rng.IntN(40)))
}

func (a *actor) step(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(a.rng.IntN(400))*time.Millisecond)
	defer cancel()
	id := a.ref()
	switch a.rng.IntN(10) {
	case 0, 1, 2, 3:
		wasGone := a.o.isGone(id)
		if _, err := a.r.Create(ctx, leader, a.r.request(id), nil); err == nil {
			a.o.created(id, wasGone)
		}
	case 4, 5, 6:
		a.o.asked(id)
		gone := id
		gone.OpID = fmt.Sprint("d", a.rng.Int())
		if a.r.Destroy(ctx, leader, gone) == nil {
			a.o.destroyed(id)
		}
	case 7:
		_, err := a.r.Exec(ctx, hostd.ExecCall{Fence: leader, Ref: id, Spec: fleet.ExecSpec{Argv: []string{"sleep", "0.2"}}})
		if err != nil && fleet.CodeOf(err) == fleet.CodeInternal && ctx.Err() == nil {
			t.Errorf("exec: %v", err)
		}
	case 8:
		late := leader
		late.Term--
		if err := a.r.Destroy(ctx, late, id); !errors.Is(err, fleet.ErrStaleTerm) {
			t.Errorf("destroy in a stale term: %v", err)
		}
	case 9:
		a.r.listing()
	}
}

// TestChaos lets actors work on the same few VM ids while steps are slow and
// fail, with restarts in between, and checks what the agent said against what
// it says.
func TestChaos(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	opts := sim.Options{
		Seed:  seed,
		Delay: map[string]sim.Range{"create": {Max: 50 * time.Millisecond}, "boot": {Max: 200 * time.Millisecond}, "remove": {Max: 100 * time.Millisecond}, "adopt": {Max: 50 * time.Millisecond}},
		Fail:  map[string]sim.Failure{"create": {Rate: 0.1}, "boot": {Rate: 0.2}, "remove": {Rate: 0.2}},
	}
	bubble(t, opts, func(t *testing.T, r *rig) {
		o := &oracle{t: t, acked: map[string]string{}, doomed: map[string]bool{}, gone: map[string]bool{}}
		acked := 0
		for round := range testkit.Count(6, 60) {
			var wg sync.WaitGroup
			for n := range 8 {
				a := &actor{r: r, o: o, round: round, rng: rand.New(rand.NewPCG(seed, uint64(round*100+n)))}
				wg.Go(func() {
					for range 60 {
						a.step(t)
					}
				})
			}
			wg.Wait()
			elapse(2 * time.Minute) // what goes on without its caller ends, what failed is tried again
			o.check(r)
			acked += len(o.acked)
			r.restart(opts)
			elapse(time.Minute)
			o.check(r)
		}
		if acked == 0 || len(o.gone) < 10 {
			t.Errorf("the test saw %d environments last and %d destroyed", acked, len(o.gone))
		}
		for _, v := range r.listing().VMs {
			id := ref(v.ID, v.UID)
			for r.Destroy(t.Context(), leader, id) != nil { // one in five fails
			}
		}
		r.wantLeft()
	})
}
