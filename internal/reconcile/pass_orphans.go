package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/fusevm/fuse/internal/fleet"
)

// orphans finds VMs of ours that no row knows, by uid, and copies of lives that
// went on elsewhere while their host was away: of those the one with the highest
// generation stays. There is no grace
// period, because a create is durable before the host is called: whatever a
// host lists had its row before the answer came, so rows read after the answer
// that lack the uid mean that its life is over or never was. Without that order
// nothing is judged.
func (p *plan) orphans() {
	for _, v := range p.views {
		if !v.complete {
			p.in.Memory.keepOrphans(v.host, p.next)
			continue
		}
		heard, known := p.in.Heard[v.host]
		if !known || heard < v.obs.Revision || p.in.Revision < heard {
			p.in.Memory.keepOrphans(v.host, p.next)
			continue
		}
		for _, vm := range slices.SortedFunc(maps.Values(v.listed), func(a, b fleet.ObservedVM) int {
			return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.UID, b.UID))
		}) {
			// An owner record without a uid cannot be read; it is not ours.
			if vm.UID != "" && (p.rows[vm.UID] == nil || superseded(p.rows[vm.UID], v.host, vm.Generation)) {
				p.orphan(v, vm)
			}
		}
	}
}

// superseded says whether a copy of a life on a host is older than the one that
// its row means, which is on another host: its host was away when the life went
// elsewhere. A copy that is as new, or newer, is nobody's to judge here, and
// none is while the other host has not made its own: it may be the only one.
func superseded(row *fleet.VM, hostID string, generation int64) bool {
	made := row.State == fleet.VMStateRunning || row.State == fleet.VMStateDraining
	return made && row.HostID != "" && row.HostID != hostID && generation > 0 && generation < row.Generation
}

func (p *plan) orphan(v view, vm fleet.ObservedVM) {
	key := OrphanKey{v.host, vm.ID, vm.UID}
	tries := p.in.Memory.Orphans[key]
	p.next.Orphans[key] = tries
	if p.in.Limits.OrphanTries < 0 || p.in.Busy[vm.UID] || tries.Dead {
		return
	}
	step := Step{Kind: KindOrphan, VMID: vm.ID, UID: vm.UID, Generation: vm.Generation, Rule: fleet.RuleOrphan}
	if tries.Made >= p.in.Limits.OrphanTries {
		tries.Dead = true
		step.Kind, step.Count = KindDeadLetter, tries.Made
		step.Evidence = fmt.Sprintf("host %s still lists it after %d tries to destroy it (look %s)", v.host, tries.Made, v.obs.ID)
		p.next.Orphans[key] = tries
		p.add(v, step)
		return
	}
	tries.Made++
	step.Count = tries.Made
	step.Evidence = fmt.Sprintf("host %s lists it as fleet %s's (look %s), no row has uid %s at revision %d; try %d of %d",
		v.host, p.in.FleetID, v.obs.ID, vm.UID, p.in.Revision, tries.Made, p.in.Limits.OrphanTries)
	if row := p.rows[vm.UID]; row != nil {
		step.Rule = fleet.RuleSuperseded
		step.Evidence = fmt.Sprintf("host %s lists generation %d of it (look %s), the row at revision %d has generation %d on host %s; try %d of %d",
			v.host, vm.Generation, v.obs.ID, p.in.Revision, row.Generation, row.HostID, tries.Made, p.in.Limits.OrphanTries)
	}
	if p.end(v, step) == admitted {
		p.next.Orphans[key] = tries
	}
}

// keepOrphans spends no try on a host that was not seen.
func (m Memory) keepOrphans(host string, next Memory) {
	for key, tries := range m.Orphans {
		if key.HostID == host {
			next.Orphans[key] = tries
		}
	}
}
