package schedule

import "github.com/fusevm/fuse/internal/fleet"

// byRegion compares names exactly; a spec without a region goes anywhere.
func byRegion(in *Input, h *fleet.Host, why *Refusal) bool {
	if in.Spec.Region == "" || in.Spec.Region == h.Region {
		return true
	}
	if why != nil {
		why.Want, why.Have = in.Spec.Region, h.Region
	}
	return false
}
