package schedule

import "github.com/fusevm/fuse/internal/fleet"

// byRegion compares names exactly; a spec without a region goes anywhere.
func byRegion(in *Input, h *fleet.Host) *Refusal {
	if in.Spec.Region == "" || in.Spec.Region == h.Region {
		return nil
	}
	return &Refusal{Want: in.Spec.Region, Have: h.Region}
}
