package schedule

import (
	"cmp"

	"github.com/fusevm/fuse/internal/fleet"
)

// byArch reads an empty architecture as amd64 on a host (all hosts were, before
// it was recorded) and as "any" on a spec.
func byArch(in *Input, h *fleet.Host) *Refusal {
	want := fleet.NormalizeArch(in.Spec.Arch)
	have := cmp.Or(fleet.NormalizeArch(h.Capacity.Arch), fleet.ArchAMD64)
	if want == "" || want == have {
		return nil
	}
	return &Refusal{Want: want, Have: have}
}
