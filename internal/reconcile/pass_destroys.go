package reconcile

import (
	"cmp"
	"fmt"

	"github.com/fusevm/fuse/internal/fleet"
)

// destroys goes on with what was claimed for destruction and is still there,
// after 1, 2, 4 … cycles up to a cap, until it is confirmed. While the host is
// not seen it waits, and spends nothing. A row that never reached a host has
// nothing to look at and is retried by the same clock.
func (p *plan) destroys() {
	for _, v := range p.views {
		for _, vm := range v.rows {
			if vm.State != fleet.VMStateDestroying {
				continue
			}
			_, there := v.listed[vm.UID]
			switch {
			case !v.judged(vm):
				p.in.Memory.keepDestroy(VMKey{v.host, vm.UID}, p.next)
			case there:
				p.retry(v, vm, fmt.Sprintf("host %s still lists it (look %s)", v.host, v.obs.ID))
			}
		}
	}
	if !p.in.Fleet {
		return
	}
	for _, vm := range p.in.VMs {
		if vm.HostID == "" && vm.State == fleet.VMStateDestroying {
			p.retry(view{}, vm, "the row has no host")
		}
	}
}

func (p *plan) retry(v view, vm *fleet.VM, seen string) {
	key := VMKey{v.host, vm.UID}
	tries := p.in.Memory.Destroys[key]
	if by, paused := p.in.Paused.At(v.host); paused && unattended(vm) {
		p.sum.Withheld++
		held := of(KindRetry, vm)
		held.HostID, held.Rule = v.host, endRule(vm)
		p.withheld = append(p.withheld, Withheld{held, "paused: " + by.String()})
		p.in.Memory.keepDestroy(VMKey{v.host, vm.UID}, p.next)
		return
	}
	tries.Gone = false
	if p.due(key, &tries, vm) {
		step := of(KindRetry, vm)
		step.Rule, step.Count = endRule(vm), tries.Made
		step.Evidence = fmt.Sprintf("destroying since revision %d, %s; try %d", vm.Revision, seen, tries.Made)
		p.add(v, step)
	}
}

// due counts one cycle and says whether a try is made in it.
func (p *plan) due(key VMKey, tries *Tries, vm *fleet.VM) bool {
	defer func() { p.next.Destroys[key] = *tries }()
	if p.in.Busy[vm.UID] {
		return false
	}
	if tries.Wait > 0 {
		tries.Wait--
		return false
	}
	*tries = backedOff(*tries, p.in.Limits.BackoffCycles)
	return true
}

// backedOff counts a try and the cycles to wait after it.
func backedOff(t Tries, most int) Tries {
	t.Made++
	// The shift is bounded: beyond a few doublings the cap decides.
	t.Wait = min(1<<min(t.Made-1, 16), most) - 1
	return t
}

func (m Memory) keepDestroy(key VMKey, next Memory) {
	if tries, ok := m.Destroys[key]; ok {
		next.Destroys[key] = tries
	}
}

func endRule(vm *fleet.VM) string {
	if vm.End == nil {
		return fleet.RuleManualDestroy
	}
	return vm.End.Rule
}

func byID(a, b *fleet.VM) int { return cmp.Compare(a.ID, b.ID) }
