package state

import "github.com/fusevm/fuse/internal/fleet"

// attribute fills in what events concern and their emitters left out, from the
// rows as the Update leaves them: environment, host and owner. An owner that
// nothing tells stays empty; such an event is for whoever may see everything.
func (t *Tx) attribute() {
	for i := range t.events {
		e := &t.events[i]
		if e.UID != "" {
			t.attributeLife(e)
		}
		switch e.EntityType {
		case fleet.EntityVM:
			e.VMID = or(e.VMID, e.EntityID)
		case fleet.EntityHost:
			e.HostID = or(e.HostID, e.EntityID)
			if h, ok := t.host(e.EntityID); ok {
				e.Owner = or(e.Owner, h.Owner)
			}
		case fleet.EntitySnapshot:
			if s, ok := t.Snapshots().Get(e.EntityID); ok {
				e.VMID, e.HostID, e.Owner = or(e.VMID, s.VMID), or(e.HostID, s.HostID), or(e.Owner, s.Owner)
			}
		}
	}
}

func (t *Tx) attributeLife(e *fleet.Event) {
	if vm, ok := t.VMs().GetUID(e.UID); ok {
		e.VMID, e.HostID, e.Owner = or(e.VMID, vm.ID), or(e.HostID, vm.HostID), or(e.Owner, vm.Owner)
		return
	}
	if life, ok := t.Lives().GetUID(e.UID); ok {
		e.VMID, e.HostID, e.Owner = or(e.VMID, life.VMID), or(e.HostID, life.HostID), or(e.Owner, life.Owner)
	}
}

// host finds a host also when this very Update removed it.
func (t *Tx) host(id string) (*fleet.Host, bool) {
	if h, ok := t.Hosts().Get(id); ok {
		return h, true
	}
	h, ok := t.before[rowID{TableHosts, Key{id}}].(*fleet.Host)
	return h, ok && h != nil
}

func or(have, otherwise string) string {
	if have != "" {
		return have
	}
	return otherwise
}
