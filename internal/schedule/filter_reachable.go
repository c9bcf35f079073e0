package schedule

import (
	"cmp"

	"github.com/fusevm/fuse/internal/fleet"
)

// byReachable refuses hosts that do not answer now. Reachability is a volatile
// fact apart from the state an operator set.
func byReachable(in *Input, h *fleet.Host, why *Refusal) bool {
	reason, gone := in.Unreachable[h.ID]
	if gone && why != nil {
		why.Have = cmp.Or(reason, "no answer")
	}
	return !gone
}
