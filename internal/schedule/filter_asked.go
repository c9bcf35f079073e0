package schedule

import (
	"cmp"

	"github.com/fusevm/fuse/internal/fleet"
)

// byAsked leaves out hosts that were asked to make this very VM and refused:
// a host knows better than its record what it has room for.
func byAsked(in *Input, h *fleet.Host, why *Refusal) bool {
	reason, refused := in.Refused[h.ID]
	if refused && why != nil {
		why.Have = cmp.Or(reason, "no room")
	}
	return !refused
}
