package reconcile

import (
	"fmt"

	"github.com/fusevm/fuse/internal/fleet"
)

// reap settles destroys that the host confirms: a complete look, sent after
// the row was claimed, does not list the VM. The row then goes and its capacity
// returns to the host.
func (p *plan) reap() {
	for _, v := range p.views {
		for _, vm := range v.rows {
			if _, there := v.listed[vm.UID]; there || vm.State != fleet.VMStateDestroying || !v.judged(vm) {
				continue
			}
			key := VMKey{v.host, vm.UID}
			tries := p.in.Memory.Destroys[key]
			if !tries.Gone {
				tries = Tries{Gone: true} // news: no reason to wait longer
			}
			if p.due(key, &tries, vm) {
				step := of(KindReap, vm)
				step.Rule, step.Count = endRule(vm), tries.Made
				step.Evidence = fmt.Sprintf("destroying since revision %d, host %s no longer lists it (look %s, sent at revision %d)",
					vm.Revision, v.host, v.obs.ID, v.obs.Revision)
				p.add(v, step)
			}
		}
	}
}
