package fleet

import (
	"slices"
	"time"
)

// What becomes of an environment that nobody uses.
const (
	IdleDestroy = "destroy"
	IdlePause   = "pause"
)

// GoldenOff keeps a machine from going on from a golden snapshot.
const GoldenOff = "off"

// CheckContinuation holds what says how a machine begins and stands still.
func CheckContinuation(s Spec) error {
	if s.OnIdle != "" && s.OnIdle != IdleDestroy && s.OnIdle != IdlePause {
		return Invalid("spec.on_idle", "destroy or pause", "leave it out for destroy", "is %.40q", s.OnIdle)
	}
	if s.Golden != "" && s.Golden != "auto" && s.Golden != GoldenOff {
		return Invalid("golden", "auto or off", "leave it out for auto", "is %.40q", s.Golden)
	}
	if s.OnIdle == IdlePause && s.HasGPU() {
		return Wrap(CodeConflict, ErrGPUUnsupported, "a machine with a GPU cannot be paused: "+ErrGPUUnsupported.Error()).
			With(DetailScope, "spec.on_idle").With(DetailRemedy, "leave on_idle out")
	}
	if s.OnIdle == IdlePause && s.HugePages {
		return Invalid("spec.on_idle", "destroy, with huge_pages", "leave on_idle or huge_pages out", "is pause, and memory on huge pages cannot be captured")
	}
	return nil
}

// HasGPU says whether a machine holds a device, which keeps it from being
// captured.
func (s Spec) HasGPU() bool { return s.GPUs > 0 || s.GPUProfile != "" }

// Activity is where a pause stands.
type Activity string

// Activities. An environment in any of them is running on the wire; memory and
// CPUs count as held in all but ActivityPaused.
const (
	ActivityPausing  Activity = "pausing"
	ActivityPaused   Activity = "paused"
	ActivityResuming Activity = "resuming"
)

// Standstill is an environment that stands still.
type Standstill struct {
	Activity Activity  `json:"activity"`
	Reason   Reason    `json:"reason"`
	At       time.Time `json:"at"`
	// KeptBytes is what its memory takes of the host's disk.
	KeptBytes int64 `json:"kept_bytes,omitempty"`
	// Op names the call to the host that is under way.
	Op        string `json:"op,omitempty"`
	LastError string `json:"last_error,omitempty"`
}

// Activity is how the environment stands still; empty if it does not.
func (vm *VM) Activity() Activity {
	if vm.Paused == nil {
		return ""
	}
	return vm.Paused.Activity
}

// Demand is what the environment takes of a host. One that is paused has its
// disk and its place only.
func (vm *VM) Demand(facts HostFacts) HostCapacity {
	if vm.Activity() == ActivityPaused {
		return HostCapacity{StorageGB: vm.Spec.StorageGB, VMCount: 1}
	}
	return Demand(vm.Spec, facts)
}

// SameDemand says whether two rows take the same of a host.
func (vm *VM) SameDemand(o *VM) bool {
	a, b := &vm.Spec, &o.Spec
	return (vm.Activity() == ActivityPaused) == (o.Activity() == ActivityPaused) &&
		a.CPUs == b.CPUs && a.RamMB == b.RamMB && a.StorageGB == b.StorageGB && a.HugePages == b.HugePages &&
		a.GPUs == b.GPUs && a.GPUProfile == b.GPUProfile &&
		slices.Equal(a.GPUUUIDs, b.GPUUUIDs) && slices.Equal(a.MIGInstanceUUIDs, b.MIGInstanceUUIDs)
}
