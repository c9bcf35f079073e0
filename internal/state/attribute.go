package state

import (
	"cmp"

	"github.com/fusevm/fuse/internal/fleet"
)

// attribute fills in what events concern and their emitters left out, from the
// rows as the Update leaves them: environment, host and owner. An owner that
// nothing tells stays empty; such an event is for whoever may see everything.
func attribute(t *Tx) {
	for i := range t.events {
		e := &t.events[i]
		if e.UID != "" {
			attributeLife(t, e)
		}
		switch e.EntityType {
		case fleet.EntityVM:
			e.VMID = cmp.Or(e.VMID, e.EntityID)
		case fleet.EntityHost:
			e.HostID = cmp.Or(e.HostID, e.EntityID)
			if h, ok := hostOf(t, e.EntityID); ok {
				e.Owner = cmp.Or(e.Owner, h.Owner)
			}
		case fleet.EntitySnapshot:
			if s, ok := t.Snapshots().Get(e.EntityID); ok {
				e.VMID, e.HostID, e.Owner = cmp.Or(e.VMID, s.VMID), cmp.Or(e.HostID, s.HostID), cmp.Or(e.Owner, s.Owner)
			}
		}
	}
}

func attributeLife(t *Tx, e *fleet.Event) {
	if vm, ok := t.VMs().GetUID(e.UID); ok {
		e.VMID, e.HostID, e.Owner = cmp.Or(e.VMID, vm.ID), cmp.Or(e.HostID, vm.HostID), cmp.Or(e.Owner, vm.Owner)
		return
	}
	if life, ok := t.Lives().GetUID(e.UID); ok {
		e.VMID, e.HostID, e.Owner = cmp.Or(e.VMID, life.VMID), cmp.Or(e.HostID, life.HostID), cmp.Or(e.Owner, life.Owner)
	}
}

// hostOf finds a host also when this very Update removed it.
func hostOf(t *Tx, id string) (*fleet.Host, bool) {
	if h, ok := t.Hosts().Get(id); ok {
		return h, true
	}
	h, ok := t.before[rowID{TableHosts, Key{id}}].(*fleet.Host)
	return h, ok && h != nil
}
