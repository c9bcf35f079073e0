package schedule

import (
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// shortOfGPUs counts the free devices that would serve the spec. A host that
// reports each device or instance is counted by those not yet bound; one that
// declares numbers only, by the numbers. Whole GPUs and MIG instances are
// separate pools.
func shortOfGPUs(spec *fleet.Spec, h *fleet.Host) []Shortage {
	var s Shortage
	switch {
	case spec.GPUProfile != "" && len(h.Capacity.MIGInstances) > 0:
		s = migByInstance(spec, h)
	case spec.GPUProfile != "":
		s = migByCount(spec, h)
	case len(h.Capacity.GPUDevices) > 0:
		s = gpuByDevice(spec, h)
	default:
		s = gpuByCount(spec, h)
	}
	s.Need = max(int(spec.GPUs), 1)
	s.Resource = gpuResource(spec)
	if s.Need <= s.Free {
		return nil
	}
	return []Shortage{s}
}

func migByInstance(spec *fleet.Spec, h *fleet.Host) (s Shortage) {
	for _, inst := range h.Capacity.MIGInstances {
		if inst.UUID == "" || !strings.EqualFold(inst.Profile, spec.GPUProfile) || !ofKind(inst.Kind, spec.GPUKind) {
			continue
		}
		s.Total++
		if !slices.Contains(h.Allocated.MIGInstanceUUIDs, inst.UUID) {
			s.Free++
		}
	}
	return s
}

func migByCount(spec *fleet.Spec, h *fleet.Host) (s Shortage) {
	if spec.GPUKind != "" && !carvable(h.Capacity, spec.GPUKind) {
		return s
	}
	s.Total = h.Capacity.MIGProfiles[spec.GPUProfile]
	s.Free = s.Total - h.Allocated.MIGProfiles[spec.GPUProfile]
	return s
}

// carvable says whether a host that only counts its instances has a card of
// the kind that can be carved at all.
func carvable(total fleet.HostCapacity, kind string) bool {
	if len(total.GPUDevices) == 0 {
		return ofKind(total.GPUKind, kind)
	}
	return slices.ContainsFunc(total.GPUDevices, func(d fleet.GPUDevice) bool {
		return d.MIGCapable && ofKind(d.Model, kind)
	})
}

func gpuByDevice(spec *fleet.Spec, h *fleet.Host) (s Shortage) {
	for _, d := range h.Capacity.GPUDevices {
		if !wholeCard(d, spec.GPUKind) {
			continue
		}
		s.Total++
		if !slices.Contains(h.Allocated.GPUDeviceUUIDs, d.UUID) {
			s.Free++
		}
	}
	return s
}

func gpuByCount(spec *fleet.Spec, h *fleet.Host) (s Shortage) {
	if ofKind(h.Capacity.GPUKind, spec.GPUKind) {
		s.Total = h.Capacity.GPUs
		s.Free = s.Total - h.Allocated.GPUs
	}
	return s
}

// ofKind matches a device model against the kind asked for as the existing
// wire does: a part of the name, in any case. No kind matches all.
func ofKind(model, kind string) bool {
	return kind == "" || strings.Contains(strings.ToLower(model), strings.ToLower(kind))
}

func gpuResource(spec *fleet.Spec) Resource {
	name := "gpus"
	if spec.GPUProfile != "" {
		name = spec.GPUProfile + " gpu instances"
	}
	if spec.GPUKind != "" {
		name += " of kind " + spec.GPUKind
	}
	return Resource(name)
}
