package reconcile

import (
	"maps"

	"github.com/fusevm/fuse/internal/fleet"
)

// Memory is what one cycle remembers for the next. It is volatile: a restart
// begins with none, so every strike and every try counts anew.
type Memory struct {
	Strikes map[VMKey]Strike
	Orphans map[OrphanKey]Tries
	// Destroys are the retries of destroys that did not finish.
	Destroys map[VMKey]Tries
	// Listed is how many VMs each host listed when it was last seen.
	Listed map[string]int
}

// VMKey is one life on one host.
type VMKey struct{ HostID, UID string }

// OrphanKey is one orphan.
type OrphanKey struct{ HostID, VMID, UID string }

// Strike counts the complete looks in a row that did not list a VM whose row
// has not changed meanwhile.
type Strike struct {
	Count       int
	RowRevision uint64
	FirstLook   string
}

// Tries counts attempts; Wait is for how many more cycles none is made.
type Tries struct {
	Made int
	Wait int
	Dead bool // given up
	Gone bool // the host confirmed that the VM is not there
}

// Keep drops what belongs to hosts that are no longer registered.
func (m Memory) Keep(registered func(hostID string) bool) Memory {
	return m.filter(func(host string) bool { return host == "" || registered(host) })
}

// without copies what belongs to hosts that were not looked at; the passes
// write the rest anew, so that nothing outlives its condition by accident.
func (m Memory) without(looked map[string]fleet.Observation, hostless bool) Memory {
	return m.filter(func(host string) bool {
		_, ok := looked[host]
		return !ok && (host != "" || !hostless)
	})
}

func (m Memory) filter(keep func(host string) bool) Memory {
	return Memory{
		Strikes:  kept(m.Strikes, func(k VMKey) bool { return keep(k.HostID) }),
		Orphans:  kept(m.Orphans, func(k OrphanKey) bool { return keep(k.HostID) }),
		Destroys: kept(m.Destroys, func(k VMKey) bool { return keep(k.HostID) }),
		Listed:   kept(m.Listed, keep),
	}
}

func kept[K comparable, V any](m map[K]V, keep func(K) bool) map[K]V {
	out := make(map[K]V, len(m))
	maps.Copy(out, m)
	maps.DeleteFunc(out, func(k K, _ V) bool { return !keep(k) })
	return out
}
