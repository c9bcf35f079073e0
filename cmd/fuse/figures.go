package main

import (
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
)

// fleetNow reads the fleet for a scrape.
func (p *plane) fleetNow() metrics.Fleet {
	f := metrics.Fleet{VMs: map[metrics.StateHost]int{}}
	// The closure never fails, so neither does the view.
	_ = p.store.View(func(tx *state.ReadTx) error {
		for vm := range tx.VMs().All() {
			f.VMs[metrics.StateHost{State: vm.State, HostID: vm.HostID}]++
		}
		for h := range tx.Hosts().All() {
			f.Hosts = append(f.Hosts, metrics.HostFigures{Host: h, LastSeen: p.hosts.Sighting(h.ID).LastSeen})
		}
		return nil
	})
	return f
}

// createDone exports how a create went.
func (p *plane) createDone(took time.Duration, steps []fleet.StepTime, err error) {
	p.metrics.OperationCompleted("create", took, err)
	for _, st := range steps {
		p.metrics.CreatePhase(st.Step, st.Took)
	}
}

// cycleDone exports what a cycle of the loop did, and forgets the activity of
// lives that are over.
func (p *plane) cycleDone(s reconcile.Summary) {
	_ = p.store.View(func(tx *state.ReadTx) error {
		p.guests.Forget(func(uid string) bool {
			_, alive := tx.VMs().GetUID(uid)
			return alive
		})
		return nil
	})
	p.metrics.ReconcileCompleted(metrics.Summary{
		TrackedVMs: s.TrackedVMs, ProviderVMs: s.ProviderVMs, HostsUnseen: len(s.HostsUnseen),
		OrphansDestroyed: s.OrphansDestroyed, OrphansFailed: s.OrphansFailed, OrphansDeadLettered: s.OrphansDeadLettered,
		VMsMissingProvider: s.VMsMissingProvider, DestroysRetried: s.DestroysRetried, Duration: s.Duration,
	})
}
