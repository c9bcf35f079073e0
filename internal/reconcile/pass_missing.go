package reconcile

import (
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// missing finds running and draining VMs that their host no longer has: at
// once when the host itself recorded the end of that life, otherwise when two
// complete looks in a row do not show it running. A look that is not complete
// ends the row of strikes. Provisioning and destroying VMs are not judged: the
// work on them decides what becomes of them.
func (p *plan) missing() {
	for _, v := range p.views {
		for _, vm := range v.rows {
			if vm.State == fleet.VMStateRunning || vm.State == fleet.VMStateDraining {
				p.judge(v, vm)
			}
		}
	}
}

func (p *plan) judge(v view, vm *fleet.VM) {
	if !v.judged(vm) || v.listed[vm.UID].Running {
		return
	}
	key := VMKey{v.host, vm.UID}
	step := of(KindMissing, vm)
	step.Rule = fleet.RuleMissingFromProvider
	if exit, ended := v.exits[vm.UID]; ended {
		step.Evidence = fmt.Sprintf("host %s recorded the end at %s: %s (look %s)",
			v.host, exit.At.UTC().Format(time.RFC3339), cause(exit), v.obs.ID)
		p.end(v, step)
		return
	}
	strike := p.in.Memory.Strikes[key]
	if strike.Count == 0 || strike.RowRevision != vm.Revision {
		strike = Strike{RowRevision: vm.Revision, FirstLook: v.obs.ID}
	}
	strike.Count++
	p.next.Strikes[key] = strike
	if strike.Count < strikesNeeded {
		p.sum.MissingSuspected++
		return
	}
	how := "does not list it"
	if _, stopped := v.listed[vm.UID]; stopped {
		how = "lists it as stopped"
	}
	step.Count = strike.Count
	step.Evidence = fmt.Sprintf("host %s %s: %d complete looks in a row, from %s to %s; row unchanged since revision %d, look sent at %d",
		v.host, how, strike.Count, strike.FirstLook, v.obs.ID, vm.Revision, v.obs.Revision)
	if p.end(v, step) == paused {
		strike.Count = 1 // to be seen once more when destruction goes on
		p.next.Strikes[key] = strike
	}
}

func cause(e fleet.ExitRecord) string {
	if e.Detail == "" {
		return e.Cause
	}
	return e.Cause + ", " + e.Detail
}
