package schedule

import "github.com/fusevm/fuse/internal/fleet"

// Gate names one filter of the pipeline.
type Gate string

// Gates, in the order in which they are asked.
const (
	GatePin        Gate = "pin"
	GateState      Gate = "state"
	GateReachable  Gate = "reachable"
	GateRegion     Gate = "region"
	GateArch       Gate = "arch"
	GateGPUBackend Gate = "gpu_backend"
	GateLabels     Gate = "labels"
	GateFit        Gate = "fit"
)

// gates is the pipeline. A gate answers nil to let a host pass.
var gates = []struct {
	name   Gate
	refuse func(*Input, *fleet.Host) *Refusal
}{
	{GatePin, byPin},
	{GateState, byState},
	{GateReachable, byReachable},
	{GateRegion, byRegion},
	{GateArch, byArch},
	{GateGPUBackend, byGPUBackend},
	{GateLabels, byLabels},
	{GateFit, byFit},
}
