package hostwire

import (
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

// FactsToWire renders facts.
func FactsToWire(f fleet.HostFacts) *hostwirev1.HostFacts {
	return &hostwirev1.HostFacts{
		RegistryId: f.RegistryID, MachineId: f.MachineID, BootId: f.BootID,
		Driver: f.Driver, Accelerator: f.Accelerator, Version: f.Version,
		WireVersion: int32(f.WireVersion), Kernel: f.Kernel, DriverVersion: f.DriverVersion,
		CpuModel: f.CPUModel, OverheadMb: int64(f.OverheadMB),
		Capabilities: f.Capabilities, Missing: f.Missing,
		CpuOvercommit: f.CPUOvercommit, FreeHugePages: int64(f.FreeHugePages),
	}
}

// FactsFromWire reads facts.
func FactsFromWire(f *hostwirev1.HostFacts) fleet.HostFacts {
	return fleet.HostFacts{
		RegistryID: f.GetRegistryId(), MachineID: f.GetMachineId(), BootID: f.GetBootId(),
		Driver: f.GetDriver(), Accelerator: f.GetAccelerator(), Version: f.GetVersion(),
		WireVersion: int(f.GetWireVersion()), Kernel: f.GetKernel(), DriverVersion: f.GetDriverVersion(),
		CPUModel: f.GetCpuModel(), OverheadMB: int(f.GetOverheadMb()),
		Capabilities: f.GetCapabilities(), Missing: f.GetMissing(),
		CPUOvercommit: f.GetCpuOvercommit(), FreeHugePages: int(f.GetFreeHugePages()),
	}
}

// CapacityToWire renders a capacity.
func CapacityToWire(c fleet.HostCapacity) *hostwirev1.Capacity {
	return &hostwirev1.Capacity{
		Cpus: int64(c.CPUs), RamMb: int64(c.RamMB), StorageGb: int64(c.StorageGB),
		VmCount: int64(c.VMCount), Arch: c.Arch, HugePages: int64(c.HugePages),
	}
}

// CapacityFromWire reads a capacity.
func CapacityFromWire(c *hostwirev1.Capacity) fleet.HostCapacity {
	return fleet.HostCapacity{
		CPUs: int(c.GetCpus()), RamMB: int(c.GetRamMb()), StorageGB: int(c.GetStorageGb()),
		VMCount: int(c.GetVmCount()), Arch: c.GetArch(), HugePages: int(c.GetHugePages()),
	}
}

// BootToWire renders how a VM came up.
func BootToWire(digest string, b fleet.BootRecord) *hostwirev1.CreateVMResult {
	r := &hostwirev1.CreateVMResult{ImageDigest: digest, BootMode: string(b.Mode)}
	for _, s := range b.Steps {
		r.Steps = append(r.Steps, &hostwirev1.StepTime{Step: s.Step, TookUs: s.Took.Microseconds()})
	}
	return r
}

// BootFromWire reads how a VM came up.
func BootFromWire(r *hostwirev1.CreateVMResult) (digest string, b fleet.BootRecord) {
	b.Mode = fleet.BootMode(r.GetBootMode())
	for _, s := range r.GetSteps() {
		b.Steps = append(b.Steps, fleet.StepTime{Step: s.GetStep(), Took: time.Duration(s.GetTookUs()) * time.Microsecond})
	}
	return r.GetImageDigest(), b
}

// VMToWire renders one observed VM.
func VMToWire(v fleet.ObservedVM) *hostwirev1.ObservedVM {
	w := &hostwirev1.ObservedVM{VmId: v.ID, Uid: v.UID, Generation: v.Generation, Running: v.Running, Paused: v.Paused}
	if v.Exit != nil {
		w.Exit = &hostwirev1.ExitRecord{Cause: v.Exit.Cause, Detail: v.Exit.Detail, AtUnixMs: v.Exit.At.UnixMilli()}
	}
	if h := v.Health; h != nil {
		w.Health = &hostwirev1.Health{State: string(h.State), SinceUnixMs: h.Since.UnixMilli(), Failures: int64(h.Failures), Message: h.Message}
	}
	return w
}

// VMFromWire reads one observed VM.
func VMFromWire(w *hostwirev1.ObservedVM) fleet.ObservedVM {
	v := fleet.ObservedVM{ID: w.GetVmId(), UID: w.GetUid(), Generation: w.GetGeneration(), Running: w.GetRunning(), Paused: w.GetPaused()}
	if x := w.GetExit(); x != nil {
		v.Exit = &fleet.ExitRecord{
			UID: v.UID, VMID: v.ID, Cause: x.GetCause(), Detail: x.GetDetail(),
			At: time.UnixMilli(x.GetAtUnixMs()).UTC(),
		}
	}
	if h := w.GetHealth(); h != nil {
		status := fleet.HealthStatus{
			State: fleet.HealthState(h.GetState()), Since: time.UnixMilli(h.GetSinceUnixMs()), Failures: int(h.GetFailures()), Message: h.GetMessage(),
		}
		v.Health = status.Sound()
	}
	return v
}

// CountsToWire renders counts by name.
func CountsToWire(counts map[string]int) map[string]int64 {
	out := make(map[string]int64, len(counts))
	for name, n := range counts {
		out[name] = int64(n)
	}
	return out
}

// CountsFromWire reads counts by name; nil if there are none.
func CountsFromWire(counts map[string]int64) map[string]int {
	var out map[string]int
	for name, n := range counts {
		if out == nil {
			out = make(map[string]int, len(counts))
		}
		out[name] = int(n)
	}
	return out
}

// StatusToWire renders how a command ended.
func StatusToWire(s fleet.ExecStatus) *hostwirev1.ExitStatus {
	return &hostwirev1.ExitStatus{ExitCode: int32(s.ExitCode), Signal: s.Signal, TimedOut: s.TimedOut}
}

// StatusFromWire reads how a command ended.
func StatusFromWire(s *hostwirev1.ExitStatus) fleet.ExecStatus {
	return fleet.ExecStatus{ExitCode: int(s.GetExitCode()), Signal: s.GetSignal(), TimedOut: s.GetTimedOut()}
}

// FilesToWire renders files.
func FilesToWire(files []fleet.GuestFile) []*hostwirev1.File {
	out := make([]*hostwirev1.File, len(files))
	for i, f := range files {
		out[i] = &hostwirev1.File{Path: f.Path, Data: f.Data, Mode: f.Mode}
	}
	return out
}

// FilesFromWire reads files.
func FilesFromWire(files []*hostwirev1.File) []fleet.GuestFile {
	out := make([]fleet.GuestFile, len(files))
	for i, f := range files {
		out[i] = fleet.GuestFile{Path: f.GetPath(), Data: f.GetData(), Mode: f.GetMode()}
	}
	return out
}
