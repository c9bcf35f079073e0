package hostd

import "github.com/fusevm/fuse/internal/fleet"

// Get looks at one life of a fleet; an empty uid means the one that there is.
func (h *Host) Get(fleetID, vmID, uid string) (fleet.ObservedVM, error) {
	h.keeper.settleExits()
	h.core.reg.mu.Lock()
	defer h.core.reg.mu.Unlock()
	l := h.core.reg.byVM[vmKey{fleetID, vmID}]
	if l == nil || uid != "" && l.owner.VM.UID != uid {
		return fleet.ObservedVM{}, notFound(vmID)
	}
	return l.observedLocked(), nil
}

// Listing is what a fleet may see of this host.
type Listing struct {
	Facts    fleet.HostFacts
	Complete bool
	Reason   string // why it is not complete
	VMs      []fleet.ObservedVM
	Foreign  int
	// ForeignFleets counts the same by fleet; unreadable owners have no name.
	ForeignFleets map[string]int
	MarkTerm      int64 // of the asking fleet; zero: no mark
}

// List looks at the host. It names no VM until the adoption that follows the
// start has ended, since what is missing could not be told from what is gone.
func (h *Host) List(fleetID string) Listing {
	facts, ok, reason := h.prober.Complete()
	out := Listing{Facts: h.prober.Facts(facts), Complete: ok, Reason: reason, MarkTerm: h.core.reg.marks.Look(fleetID)}
	if ok {
		h.keeper.settleExits()
		out.VMs, out.ForeignFleets = h.core.reg.observe(fleetID)
		for _, n := range out.ForeignFleets {
			out.Foreign += n
		}
	}
	return out
}
