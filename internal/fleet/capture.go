package fleet

import (
	"slices"
	"time"
)

// Capabilities of a host, as its facts list them. A host that lists none of
// them cannot do any of it.
const (
	CapSnapshotDisk = "snapshot.disk"
	CapSnapshotLive = "snapshot.live" // taking, restoring and forking from it
	CapFork         = "fork"
	CapPause        = "pause"
	CapGolden       = "golden"
)

// Can says whether the host lists a capability.
func (f HostFacts) Can(capability string) bool { return slices.Contains(f.Capabilities, capability) }

// MachineFacts are what the machine of a snapshot was made of. A live one can
// go on only on a host where they are equal; a disk needs the architecture.
type MachineFacts struct {
	Arch          string `json:"arch,omitempty"`
	Driver        string `json:"driver,omitempty"`
	DriverVersion string `json:"driver_version,omitempty"` // of QEMU
	Machine       string `json:"machine,omitempty"`
	Accelerator   string `json:"accelerator,omitempty"`
	CPUModel      string `json:"cpu_model,omitempty"`
	PageSize      int64  `json:"page_size,omitempty"` // of the guest's memory, in bytes
	Kernel        string `json:"kernel,omitempty"`    // digest
	Fused         string `json:"fused,omitempty"`     // digest
	GuestWire     int    `json:"guest_wire,omitempty"`
	CPUs          int    `json:"cpus,omitempty"`
	RamMB         int    `json:"ram_mb,omitempty"`
}

// SnapshotTimings are how long taking a snapshot held up what.
type SnapshotTimings struct {
	Freeze time.Duration `json:"freeze,omitempty"` // user processes stood still, in all
	Stop   time.Duration `json:"stop,omitempty"`   // of that, the whole machine
	Took   time.Duration `json:"took,omitempty"`
}

// Certificate is what a machine that went on from memory was given anew before
// its processes ran again. It is kept with the environment.
type Certificate struct {
	// Cause is what it went on from: fork, restore, resume, golden.
	Cause string `json:"cause"`
	// Generation is the identity of this continuation; no two have the same.
	Generation string    `json:"generation"`
	Renewed    []Renewal `json:"renewed"`
	// Clock is how far the clock was set.
	Clock time.Duration `json:"clock,omitempty"`
	// Held is how long processes stood still in all, within the guest.
	Held time.Duration `json:"held,omitempty"`
	At   time.Time     `json:"at"`
}

// Renewal is one thing that was renewed.
type Renewal struct {
	Name   string `json:"name"` // e.g. kernel_rng, clock, machine_id
	Detail string `json:"detail,omitempty"`
}

// Causes of certificates.
const (
	ThawFork    = "fork"
	ThawRestore = "restore"
	ThawResume  = "resume"
	ThawGolden  = "golden"
)

// Artifact is a snapshot as its host keeps it (seed: Checkpoint).
type Artifact struct {
	ID        string
	VMID, UID string // it was taken of
	// Kind is what was written, never what was asked for.
	Kind SnapshotKind
	// Digest is the sha256 of the disk's content, in hex, computed as it was written.
	Digest string
	// Files is the memory half of a live one, file name to sha256.
	Files     map[string]string
	SizeBytes int64 // that it takes of the host's disk
	Machine   MachineFacts
	Timings   SnapshotTimings
	CreatedAt time.Time
	// Users are VMs that run on it; it cannot go while there are any.
	Users []string
	// Bad says why it must not be used any more; empty: it may.
	Bad string
}
