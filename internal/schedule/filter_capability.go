package schedule

import (
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// byCapability leaves out hosts whose agent would not know a part of the spec,
// and would make the machine without it.
func byCapability(in *Input, h *fleet.Host, why *Refusal) bool {
	needs := needed(&in.Spec)
	i := slices.IndexFunc(needs, func(c string) bool { return !h.Facts.Can(c) })
	if i < 0 {
		return true
	}
	if why != nil {
		why.Want, why.Have = needs[i], strings.Join(h.Facts.Capabilities, ", ")
	}
	return false
}

func needed(spec *fleet.Spec) []string {
	var out []string
	if len(spec.ServiceImages) > 0 {
		out = append(out, fleet.CapServiceImages)
	}
	if spec.Limits != (fleet.ResourceLimits{}) {
		out = append(out, fleet.CapLimits)
	}
	return out
}
