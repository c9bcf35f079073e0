package schedule

import (
	"cmp"

	"github.com/fusevm/fuse/internal/fleet"
)

// byGPUBackend lets only backends that can pass a device through serve GPUs.
func byGPUBackend(in *Input, h *fleet.Host, why *Refusal) bool {
	if !wantsGPU(&in.Spec) {
		return true
	}
	have := cmp.Or(h.Backend, fleet.BackendFirecracker)
	if have == fleet.BackendQEMU {
		return true
	}
	if why != nil {
		why.Want, why.Have = string(fleet.BackendQEMU), string(have)
	}
	return false
}

func wantsGPU(spec *fleet.Spec) bool { return spec.GPUs > 0 || spec.GPUProfile != "" }
