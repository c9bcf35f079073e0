package schedule

import (
	"cmp"

	"github.com/fusevm/fuse/internal/fleet"
)

// score weighs what a host has free as the existing wire does: a processor
// counts as much as 10,000 MB of memory.
func score(h *fleet.Host) int {
	free := headroom(h.Capacity, h.Allocated)
	return free.CPUs*10000 + free.RamMB
}

// ranking orders hosts from best to worst. Ties go to the lowest id, so that
// the order of the input never matters.
func ranking(policy fleet.PlacementPolicy) (func(a, b *fleet.Host) int, error) {
	sign := 1
	switch policy {
	case fleet.PlacementBinpack:
	case fleet.PlacementSpread, "":
		sign = -1
	default:
		return nil, fleet.Errorf(fleet.CodeInvalidArgument, "placement policy %.40q is not known", policy).
			With(fleet.DetailLimit, "spread, binpack")
	}
	return func(a, b *fleet.Host) int {
		return cmp.Or(sign*cmp.Compare(score(a), score(b)), cmp.Compare(a.ID, b.ID))
	}, nil
}

// preferLocal narrows qualified hosts to those that already hold the seed's
// artifact, if there are any; it never brings a refused host back. A local
// copy is worth more than any score: the other way is to move gigabytes first.
func preferLocal(survivors []*fleet.Host, hints fleet.PlacementHints) (_ []*fleet.Host, local int) {
	var holders []*fleet.Host
	for _, h := range survivors {
		if hints.ArtifactHosts[h.ID] {
			holders = append(holders, h)
		}
	}
	if len(holders) == 0 {
		return survivors, 0
	}
	return holders, len(holders)
}
