package hostd

import (
	"context"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/health"
	"github.com/fusevm/fuse/internal/hostd/refusal"
)

// Get looks at one life of a fleet; an empty uid means the one that there is.
func (h *Host) Get(fleetID, vmID, uid string) (fleet.ObservedVM, error) {
	h.keeper.settleExits()
	h.core.reg.mu.Lock()
	defer h.core.reg.mu.Unlock()
	l := h.core.reg.byVM[vmKey{fleetID, vmID}]
	if l == nil || uid != "" && l.owner.VM.UID != uid {
		return fleet.ObservedVM{}, refusal.NotFound(vmID)
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
	MarkTerm      int64              // of the asking fleet; zero: no mark
	Capacity      fleet.HostCapacity // zero while the listing is not complete
}

// List looks at the host. It names no VM until the adoption that follows the
// start has ended, since what is missing could not be told from what is gone.
func (h *Host) List(fleetID string) Listing {
	facts, ok, reason := h.prober.Complete()
	out := Listing{Facts: h.prober.Facts(facts), Complete: ok, Reason: reason, MarkTerm: h.core.reg.marks.Look(fleetID)}
	if ok {
		out.Capacity = h.prober.Capacity(facts)
		h.keeper.settleExits()
		out.VMs, out.ForeignFleets = h.core.reg.observe(fleetID)
		for _, n := range out.ForeignFleets {
			out.Foreign += n
		}
	}
	return out
}

// ListVerdicts is List with the verdicts of probed lives, as far as they can be
// read in time. They are read first, so that the list is of the moment it is
// sent.
func (h *Host) ListVerdicts(ctx context.Context, fleetID string, probed []string) Listing {
	verdicts := h.health.Read(ctx, h.core.probedGuests(fleetID, probed))
	out := h.List(fleetID)
	for i := range out.VMs {
		if v, ok := verdicts[out.VMs[i].UID]; ok {
			out.VMs[i].Health = &v
		}
	}
	return out
}

// probedGuests finds the guests of running lives.
func (h *core) probedGuests(fleetID string, uids []string) map[string]health.Guest {
	h.reg.mu.Lock()
	defer h.reg.mu.Unlock()
	guests := map[string]health.Guest{}
	for _, uid := range uids {
		if l := h.reg.lives[uid]; l != nil && l.owner.FleetID == fleetID && l.phase == phaseRunning && l.inst != nil {
			guests[uid] = l.inst.Guest()
		}
	}
	return guests
}
