package schedule

import "github.com/fusevm/fuse/internal/fleet"

// Gate names one filter of the pipeline.
type Gate string

// Gates, in the order in which they are asked.
const (
	GatePin        Gate = "pin"
	GateState      Gate = "state"
	GateReachable  Gate = "reachable"
	GateAsked      Gate = "asked"
	GateRegion     Gate = "region"
	GateArch       Gate = "arch"
	GateGPUBackend Gate = "gpu_backend"
	GateCapability Gate = "capability"
	GateLabels     Gate = "labels"
	GateFit        Gate = "fit"
)

// gate is one filter: whether it lets a host pass and, when it does not and
// why is given, the two sides of the comparison. Most refusals are never read,
// so nothing is made for them unless somebody asks.
type gate struct {
	name   Gate
	passes func(in *Input, h *fleet.Host, why *Refusal) bool
}

// gates is the pipeline.
var gates = [...]gate{
	{GatePin, byPin},
	{GateState, byState},
	{GateReachable, byReachable},
	{GateAsked, byAsked},
	{GateRegion, byRegion},
	{GateArch, byArch},
	{GateGPUBackend, byGPUBackend},
	{GateCapability, byCapability},
	{GateLabels, byLabels},
	{GateFit, byFit},
}

// Gates are the names of all gates, in the order in which they are asked.
func Gates() []Gate {
	names := make([]Gate, len(gates))
	for i, g := range gates {
		names[i] = g.name
	}
	return names
}
