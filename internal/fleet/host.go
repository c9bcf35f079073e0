package fleet

import "time"

// HostBackend is the virtualization backend of a host. Empty reads as
// firecracker on old wires; a registration without one takes the probed value.
type HostBackend string

// Backends.
const (
	BackendFirecracker HostBackend = "firecracker"
	BackendQEMU        HostBackend = "qemu"
	BackendSim         HostBackend = "sim"
)

// HostState is the scheduling eligibility the operator gave a host.
// Reachability is a separate, volatile fact.
type HostState string

// Host states.
const (
	HostActive   HostState = "active"
	HostCordoned HostState = "cordoned"
	HostDraining HostState = "draining"
)

// GPUDevice is one whole GPU as the host probed it.
type GPUDevice struct {
	UUID          string `json:"uuid,omitempty"`
	Model         string `json:"model,omitempty"`
	PCIBusID      string `json:"pci_bus_id,omitempty"`
	MemoryMB      int    `json:"memory_mb,omitempty"`
	DriverVersion string `json:"driver_version,omitempty"`
	CUDAVersion   string `json:"cuda_version,omitempty"`
	ComputeCap    string `json:"compute_cap,omitempty"`
	MIGCapable    bool   `json:"mig_capable,omitempty"`
	MIGMode       string `json:"mig_mode,omitempty"`
	IOMMUGroup    string `json:"iommu_group,omitempty"`
}

// MIGInstance is one carved GPU instance.
type MIGInstance struct {
	UUID          string `json:"uuid,omitempty"`
	Profile       string `json:"profile,omitempty"`
	Kind          string `json:"kind,omitempty"`
	ParentGPUUUID string `json:"parent_gpu_uuid,omitempty"`
}

// HostCapacity is an envelope of resources: a host's total, or what is
// allocated of it. VMCount is the most VMs at a time. StorageGB is Fuse's
// share of the host's disk, not what happens to be free.
type HostCapacity struct {
	CPUs             int            `json:"cpus"`
	RamMB            int            `json:"ram_mb"`
	StorageGB        int            `json:"storage_gb"`
	VMCount          int            `json:"vm_count"`
	HugePages        int            `json:"huge_pages,omitempty"` // of 2 MiB, beside RamMB
	Arch             string         `json:"arch,omitempty"`
	GPUs             int            `json:"gpus,omitempty"`
	GPUKind          string         `json:"gpu_kind,omitempty"`
	MIGProfiles      map[string]int `json:"mig_profiles,omitempty"`
	MIGInstances     []MIGInstance  `json:"mig_instances,omitempty"`
	GPUDevices       []GPUDevice    `json:"gpu_devices,omitempty"`
	GPUDeviceUUIDs   []string       `json:"gpu_device_uuids,omitempty"`
	MIGInstanceUUIDs []string       `json:"mig_instance_uuids,omitempty"`
}

// HostFacts are probed truths about a host that placement and refusals name.
type HostFacts struct {
	RegistryID    string `json:"registry_id"` // ULID of the host's data directory
	MachineID     string `json:"machine_id"`
	BootID        string `json:"boot_id,omitempty"`
	Driver        string `json:"driver"`                // qemu, firecracker, sim
	Accelerator   string `json:"accelerator,omitempty"` // kvm or tcg
	Version       string `json:"version"`               // of hostd
	WireVersion   int    `json:"wire_version"`
	Kernel        string `json:"kernel,omitempty"`
	DriverVersion string `json:"driver_version,omitempty"`
	CPUModel      string `json:"cpu_model,omitempty"`
	// OverheadMB is memory the VM process itself needs beyond guest RAM.
	OverheadMB int `json:"overhead_mb,omitempty"`
	// CPUOvercommit is how many times over the host hands out its CPUs, as its
	// operator allows (--cpu-overcommit); zero reads as 1. Memory has none.
	CPUOvercommit float64 `json:"cpu_overcommit,omitempty"`
	// FreeHugePages are the 2 MiB pages that nothing used at the last probe.
	FreeHugePages int `json:"free_huge_pages,omitempty"`

	Capabilities []string `json:"capabilities,omitempty"`
	// Missing lists what the host lacks (no root, no KVM …), for people.
	Missing []string `json:"missing,omitempty"`
}

// Host is a registered machine. TokenSealed is the agent's bearer token,
// sealed; the plain token never enters the state.
type Host struct {
	ID          string            `json:"id"`
	Owner       string            `json:"owner"`
	URL         string            `json:"url"`
	TokenSealed []byte            `json:"token_sealed,omitempty"`
	CertSHA256  string            `json:"cert_sha256,omitempty"` // pinned, hex
	Region      string            `json:"region,omitempty"`
	Backend     HostBackend       `json:"backend,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	State       HostState         `json:"state"`
	Facts       HostFacts         `json:"facts,omitzero"`
	Capacity    HostCapacity      `json:"capacity"`
	// Declared is the part of Capacity that its operator gave, which no later
	// probe changes. Nil is an older record: all of it counts as declared.
	Declared *HostCapacity `json:"declared,omitempty"`
	// Allocated is derived: the state owner keeps it equal to the sum of what
	// the tracked VMs hold and recomputes it at load. Callers never set it.
	Allocated HostCapacity `json:"-"`
	// Drain is the drain under way; State is then draining.
	Drain     *HostDrain `json:"drain,omitempty"`
	Warnings  []string   `json:"warnings,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	UpdatedAt time.Time  `json:"updated_at"`
	Revision  uint64     `json:"revision"`
}

// PlacementPolicy picks among hosts that all qualify.
type PlacementPolicy string

// Placement policies: binpack takes the fullest host that still has room,
// spread the emptiest. Ties go to the lowest host id.
const (
	PlacementBinpack PlacementPolicy = "binpack"
	PlacementSpread  PlacementPolicy = "spread"
)

// PlacementHints are preferences among qualified hosts, by host id; they never
// admit one that a gate refused. Holding the seed's artifact outranks any
// score, holding the image only adds to it.
type PlacementHints struct {
	ArtifactHosts map[string]bool
	ImageHosts    map[string]bool
}

// PlacementDecision records why a host was picked; it stays with the VM.
type PlacementDecision struct {
	HostID          string          `json:"host_id"`
	Policy          PlacementPolicy `json:"policy"`
	Candidates      int             `json:"candidates"`
	HeadroomCPUs    int             `json:"headroom_cpus"`
	HeadroomRam     int             `json:"headroom_ram"`
	ArtifactLocal   bool            `json:"artifact_local,omitempty"`
	ArtifactHolders int             `json:"artifact_holders,omitempty"`
	ImageLocal      bool            `json:"image_local,omitempty"`
	// Tries is how many hosts were asked, when not only one: those before it
	// refused for want of room.
	Tries int `json:"tries,omitempty"`
}
