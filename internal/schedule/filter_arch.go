package schedule

import (
	"cmp"

	"github.com/fusevm/fuse/internal/fleet"
)

// byArch reads an empty architecture as amd64 on a host (all hosts were, before
// it was recorded) and as "any" on a spec.
func byArch(in *Input, h *fleet.Host, why *Refusal) bool {
	want := in.Spec.Arch // Place has normalized it
	if want == "" {
		return true
	}
	have := cmp.Or(fleet.NormalizeArch(h.Capacity.Arch), fleet.ArchAMD64)
	if want == have {
		return true
	}
	if why != nil {
		why.Want, why.Have = want, have
	}
	return false
}
