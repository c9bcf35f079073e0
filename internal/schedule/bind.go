package schedule

import (
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// Bind names the devices of a host that a VM of spec gets: the free ones with
// the lowest names. ok is false when there are fewer than it asks for; a spec
// that needs none, or a host that only counts its devices, binds nothing.
func Bind(spec fleet.Spec, h *fleet.Host) (_ fleet.Spec, ok bool) {
	spec.GPUUUIDs, spec.MIGInstanceUUIDs = nil, nil
	var free []string
	switch {
	case !wantsGPU(&spec):
		return spec, true
	case spec.GPUProfile != "" && len(h.Capacity.MIGInstances) > 0:
		for _, inst := range h.Capacity.MIGInstances {
			if inst.UUID != "" && strings.EqualFold(inst.Profile, spec.GPUProfile) && ofKind(inst.Kind, spec.GPUKind) &&
				!slices.Contains(h.Allocated.MIGInstanceUUIDs, inst.UUID) {
				free = append(free, inst.UUID)
			}
		}
	case spec.GPUProfile == "" && len(h.Capacity.GPUDevices) > 0:
		for _, d := range h.Capacity.GPUDevices {
			if wholeCard(d, spec.GPUKind) && !slices.Contains(h.Allocated.GPUDeviceUUIDs, d.UUID) {
				free = append(free, d.UUID)
			}
		}
	default:
		return spec, true
	}
	n := max(int(spec.GPUs), 1)
	if len(free) < n {
		return spec, false
	}
	slices.Sort(free)
	if spec.GPUProfile != "" {
		spec.MIGInstanceUUIDs = free[:n:n]
	} else {
		spec.GPUUUIDs = free[:n:n]
	}
	return spec, true
}

// wholeCard says whether a card can be passed through and is of the kind. One
// in MIG mode is carved; it cannot be passed through whole.
func wholeCard(d fleet.GPUDevice, kind string) bool {
	return d.UUID != "" && !strings.EqualFold(d.MIGMode, "enabled") && ofKind(d.Model, kind)
}
