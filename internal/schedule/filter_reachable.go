package schedule

import "github.com/fusevm/fuse/internal/fleet"

// byReachable refuses hosts that do not answer now. Reachability is a volatile
// fact apart from the state an operator set.
func byReachable(in *Input, h *fleet.Host) *Refusal {
	why, gone := in.Unreachable[h.ID]
	if !gone {
		return nil
	}
	if why == "" {
		why = "no answer"
	}
	return &Refusal{Have: why}
}
