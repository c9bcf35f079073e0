package schedule

import (
	"cmp"

	"github.com/fusevm/fuse/internal/fleet"
)

// byGPUBackend lets only backends that can pass a device through serve GPUs.
func byGPUBackend(in *Input, h *fleet.Host) *Refusal {
	have := cmp.Or(h.Backend, fleet.BackendFirecracker)
	if !wantsGPU(in.Spec) || have == fleet.BackendQEMU {
		return nil
	}
	return &Refusal{Want: string(fleet.BackendQEMU), Have: string(have)}
}

func wantsGPU(spec fleet.Spec) bool { return spec.GPUs > 0 || spec.GPUProfile != "" }
