package schedule

import "github.com/fusevm/fuse/internal/fleet"

// Fits says whether a host has room for spec, and if not, what it lacks.
// Only sizes count here, none of the other gates.
func Fits(spec fleet.Spec, h *fleet.Host) []Shortage {
	var r Refusal
	byFit(&Input{Spec: spec}, h, &r)
	return r.Short
}
