package schedule

import (
	"cmp"

	"github.com/fusevm/fuse/internal/fleet"
)

// Weights of a score. A processor counts as much as 10,000 MB of memory, as on
// the existing wire. An image that is there already counts as much as four
// processors: enough to save a pull among hosts that are about as full as each
// other, not enough to send everything to the first host that pulled it.
const (
	cpuWeight   = 10_000
	imageWeight = 4 * cpuWeight
)

// score weighs what a host has free. Higher is emptier.
func score(h *fleet.Host) int {
	free := headroom(h)
	return free.cpus*cpuWeight + free.ramMB
}

// rank is how much a host is liked by the policy, more being better.
func rank(in *Input, h *fleet.Host) int {
	n := score(h)
	if in.Policy == fleet.PlacementBinpack {
		n = -n
	}
	if in.Hints.ImageHosts[h.ID] {
		n += imageWeight
	}
	return n
}

// best keeps the host that is liked most. Ties go to the lowest id, so that the
// order of the input never matters. Hosts that hold the seed's artifact come
// before all others, whatever their score: the other way is to move gigabytes
// first.
type best struct {
	host    *fleet.Host
	rank    int
	local   bool
	holders int // of the artifact, among those offered
}

func (b *best) offer(in *Input, h *fleet.Host) {
	local := in.Hints.ArtifactHosts[h.ID]
	if local {
		b.holders++
	}
	r := rank(in, h)
	switch {
	case b.host == nil:
	case b.local && !local:
		return
	case local && !b.local:
	case cmp.Or(cmp.Compare(r, b.rank), cmp.Compare(b.host.ID, h.ID)) <= 0:
		return
	}
	b.host, b.rank, b.local = h, r, local
}

func checkPolicy(p fleet.PlacementPolicy) error {
	switch p {
	case fleet.PlacementBinpack, fleet.PlacementSpread, "":
		return nil
	}
	return fleet.Errorf(fleet.CodeInvalidArgument, "placement policy %.40q is not known", p).
		With(fleet.DetailLimit, "spread, binpack")
}
