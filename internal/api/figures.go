package api

import (
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/state"
)

// FleetFigures reads the fleet for a scrape of the metrics: one walk over the
// rows, without copies.
func FleetFigures(store Store, hosts Hosts) func() metrics.Fleet {
	return func() metrics.Fleet {
		f := metrics.Fleet{VMs: map[metrics.StateHost]int{}}
		_ = store.View(func(tx *state.ReadTx) error { // the closure never fails
			for vm := range tx.VMs().All() {
				f.VMs[metrics.StateHost{State: vm.State, HostID: vm.HostID}]++
			}
			for h := range tx.Hosts().All() {
				f.Hosts = append(f.Hosts, metrics.HostFigures{Host: h, LastSeen: hosts.Sighting(h.ID).LastSeen})
			}
			return nil
		})
		return f
	}
}
