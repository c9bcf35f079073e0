package converge_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/testkit"
)

// Twenty minutes of a bad day, in many versions: machines come, end and die,
// hosts are slow, deaf, half up or gone, the control plane restarts. The world
// fails the test by itself when something healthy is condemned (DestroyLife,
// DestroyOrphan). In the end the hosts are well, and state and hosts agree.
func TestBadDays(t *testing.T) {
	for seed := range testkit.Count(60, 5000) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				day := badDay{w: newWorld(t, "h1", "h2", "h3"), rnd: rand.New(rand.NewPCG(uint64(seed), 1))}
				day.run()
			})
		})
	}
}

type badDay struct {
	w      *world
	rnd    *rand.Rand
	births int
	making sync.WaitGroup
	uids   []string
}

func (d *badDay) run() {
	w := d.w
	loop := w.run()
	end := func() {
		if err := loop.end(); err != nil {
			w.t.Error(err)
		}
	}
	for time.Since(w.start) < 20*time.Minute {
		pass(time.Duration(d.rnd.IntN(8000)) * time.Millisecond)
		if d.rnd.IntN(40) == 0 {
			d.making.Wait() // creates end with their process
			end()
			loop = w.run()
			continue
		}
		d.something(fmt.Sprint("h", 1+d.rnd.IntN(3)))
	}
	d.making.Wait()
	end()
	for id := range w.hosts {
		w.on(id, func(h *host) { *h = host{vms: h.vms, exits: h.exits} })
	}
	loop = w.run()
	pass(15 * time.Minute)
	d.agree()
	end()
}

func (d *badDay) something(hostID string) {
	w := d.w
	switch d.rnd.IntN(10) {
	case 0, 1, 2, 3:
		d.births++
		uid := fmt.Sprintf("U%d", d.births)
		d.uids = append(d.uids, uid)
		takes := time.Duration(d.rnd.IntN(12000)) * time.Millisecond
		d.making.Go(func() { w.create(hostID, "fuse-"+uid, uid, takes) })
	case 4:
		if len(d.uids) > 0 {
			uid := d.uids[d.rnd.IntN(len(d.uids))]
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			d.making.Go(func() {
				defer cancel()
				// Its failure is what the loop is there for.
				_ = w.DestroyLife(ctx, "fuse-"+uid, uid, fleet.Reason{Actor: "user:x", Rule: fleet.RuleManualDestroy})
			})
		}
	case 5:
		d.die(hostID)
	case 6:
		d.births++
		w.boot(hostID, fmt.Sprint("fuse-leak", d.births), fmt.Sprint("L", d.births))
	default:
		w.on(hostID, func(h *host) {
			*h = host{vms: h.vms, exits: h.exits}
			h.listAt = time.Duration(d.rnd.IntN(4000)) * time.Millisecond
			h.answerAt = h.listAt + time.Duration(d.rnd.IntN(5000))*time.Millisecond
			h.destroyTakes = time.Duration(d.rnd.IntN(4000)) * time.Millisecond
			h.down, h.hangs, h.partial = d.rnd.IntN(6) == 0, d.rnd.IntN(6) == 0, d.rnd.IntN(6) == 0
		})
	}
}

// die ends a machine whose row says that it runs.
func (d *badDay) die(hostID string) {
	recorded, listed := d.rnd.IntN(2) == 0, d.rnd.IntN(2) == 0
	d.w.on(hostID, func(h *host) {
		for uid, vm := range h.vms {
			if row := d.w.row(uid); row == nil || row.State != fleet.VMStateRunning || !vm.Running {
				continue
			}
			if recorded {
				h.exits = append(h.exits, fleet.ExitRecord{UID: uid, VMID: vm.ID, Cause: "vmm_exited"})
			}
			if vm.Running = false; listed {
				h.vms[uid] = vm
			} else {
				delete(h.vms, uid)
			}
			return
		}
	})
}

func (d *badDay) agree() {
	w := d.w
	rows := 0
	if err := w.store.View(func(tx *state.ReadTx) error {
		for vm := range tx.VMs().All() {
			rows++
			w.mu.Lock()
			running := w.hosts[vm.HostID].vms[vm.UID].Running
			w.mu.Unlock()
			if vm.State != fleet.VMStateRunning || !running {
				w.t.Errorf("%s is %s, runs on its host: %v", vm.UID, vm.State, running)
			}
		}
		return nil
	}); err != nil {
		w.t.Error(err)
	}
	listed := 0
	for id, h := range w.hosts {
		for uid := range h.vms {
			listed++
			if w.row(uid) == nil {
				w.t.Errorf("%s is left on %s", uid, id)
			}
		}
	}
	sum, _ := last(w)
	if sum.TrackedVMs != rows || sum.ProviderVMs != listed || rows != listed || rows == 0 {
		w.t.Errorf("%d rows, %d machines; %+v", rows, listed, sum)
	}
}
