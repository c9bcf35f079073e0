// Package driver is the contract between the host agent's core and what runs
// its VMs: qemu, firecracker or sim. A driver owns processes, disks and
// networks; the core owns the registry, fencing, ids and owner records. The
// suite in drivertest holds every driver to it.
package driver

import (
	"context"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// VM is everything a driver may know of one machine. It is made by the core,
// is durable in the VM's own directory before Start is called, and is the same
// value when the VM is adopted or removed later.
type VM struct {
	ID         string `json:"id"`
	UID        string `json:"uid"`
	Generation int64  `json:"generation"`
	// Slot is a small number, unique among the host's live VMs; names of
	// namespaces, taps and uids derive from it.
	Slot int `json:"slot"`
	// Dir is the VM's own directory; the driver may put anything there but
	// the core's own files (owner.json, ops.log).
	Dir       string `json:"-"`
	CPUs      int    `json:"cpus"`
	RamMB     int    `json:"ram_mb"`
	StorageGB int    `json:"storage_gb"`
	HugePages bool   `json:"huge_pages,omitempty"` // guest memory on pages of 2 MiB
	Image     string `json:"image"`
	Digest    string `json:"digest,omitempty"` // of the image, once resolved
	// ServiceImages are attached as disks of their own that cannot be written.
	ServiceImages []string `json:"service_images,omitempty"`
	// Limits are those of the create; Limiter changes them.
	Limits fleet.ResourceLimits `json:"limits,omitzero"`
}

// Identity is what makes one guest different from the next. It reaches the
// guest in the initramfs and is never stored by the driver in clear outside
// the VM's own directory (0600).
type Identity struct {
	Hostname  string
	MachineID string
	Token     string // bearer token of the guest's own API
	CertPEM   []byte
	KeyPEM    []byte
}

// Facts are what a driver can say of its host.
type Facts struct {
	Driver        string
	DriverVersion string
	Accelerator   string // kvm or tcg; empty for sim
	Arch          string
	Kernel        string
	CPUModel      string
	CPUs          int
	RamMB         int
	StorageGB     int
	OverheadMB    int
	HugePages     int // pages of 2 MiB for guests, beside RamMB; 0: guests cannot have any
	FreeHugePages int
	VMCount       int // most VMs at a time; 0: no limit of the driver's own
	Images        []string
	Capabilities  []string // of fleet.Cap…
	Missing       []string // what is lacking, for people: "no root: user networking"
}

// Driver runs VMs. Calls for different VMs may come at once; the core never
// calls two at once for the same VM. Every call honours ctx.
type Driver interface {
	// Probe reports facts about the host. It may boot a probe guest once.
	Probe(ctx context.Context) (Facts, error)
	// Start makes and boots a VM and returns when its guest answers. step is
	// called as each named step begins. On error everything made is undone.
	Start(ctx context.Context, vm VM, id Identity, step func(name string)) (Instance, error)
	// Adopt takes hold of a VM that an earlier process started. ErrGone (with
	// an Exit in it) means that it certainly no longer runs.
	Adopt(ctx context.Context, vm VM) (Instance, error)
	// Remove ends a VM and clears everything that Start made, whether or not
	// it still runs. It is idempotent and works from vm alone.
	Remove(ctx context.Context, vm VM) error
	// Sweep compares every kind of host object with live and removes what
	// this registry's names prove to be ours and ended; it reports the rest.
	// Of a VM in live that has no slot nothing but the uid is known: what may
	// be its own is not proven to have ended.
	Sweep(ctx context.Context, live []VM) (SweepReport, error)
	// Close releases the driver's own resources. VMs go on running.
	Close() error
}

// Instance is a running VM.
type Instance interface {
	// Guest returns the channel to the guest agent.
	Guest() Guest
	// Done is closed when the VM has stopped; Exit then says why.
	Done() <-chan struct{}
	Exit() fleet.ExitRecord
	// Close lets go of the VM without ending it.
	Close() error
}

// Guest is the guest agent as hostd uses it.
type Guest interface {
	Info(ctx context.Context) (fleet.GuestInfo, error)
	// Exec runs a command and returns when it has ended and all its output is
	// written. If ctx ends first, the whole process tree is killed.
	Exec(ctx context.Context, spec fleet.ExecSpec, io fleet.Stdio) (fleet.ExecStatus, error)
	WriteFiles(ctx context.Context, files []fleet.GuestFile) error
	// Drain stops the manifest's services in reverse order, then runs command
	// if it is not empty, and leaves the agent up.
	Drain(ctx context.Context, command string) (fleet.ExecStatus, error)
}

// GoneError says that a VM certainly no longer runs.
type GoneError struct{ Exit fleet.ExitRecord }

func (e *GoneError) Error() string { return "vm is gone: " + e.Exit.Cause }

// SweepReport is what a sweep found, by kind of object.
type SweepReport struct {
	At       time.Time
	Removed  []Object
	Reported []Object // looks like ours, but nothing proves that it has ended
}

// Object is one host object.
type Object struct {
	Kind string // process, netns, tap, veth, nft, mount, socket, file, cgroup
	Name string
	Why  string
}
