package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Artifact is one capture on this host. The core makes the directory, on the
// file system of the VMs' directories, and keeps its own record beside it; the
// driver may put anything there but owner.json.
type Artifact struct {
	ID  string `json:"id"`
	Dir string `json:"-"`
}

// SnapshotRequest says what to capture. Step may be nil.
type SnapshotRequest struct {
	To   Artifact
	Live bool // memory and devices too
	// Volatile keeps the memory in RAM alone: the capture is lost with the
	// host's boot, or with the process that holds it. For forks of the moment.
	Volatile bool
	Step     func(name string)
}

// Progress is how far the copying of one part has come.
type Progress struct {
	Part        string // disk, layers, memory or check
	Done, Total int64  // bytes; Total is the most it can be
}

type tellKey struct{}

// Telling has the driver's verbs tell how far their long parts have come. They
// wait for tell.
func Telling(ctx context.Context, tell func(Progress)) context.Context {
	return context.WithValue(ctx, tellKey{}, tell)
}

// Tick tells how far one part has come; nil where nobody wants to know.
func Tick(ctx context.Context, part string) func(done, total int64) {
	tell, _ := ctx.Value(tellKey{}).(func(Progress))
	if tell == nil {
		return nil
	}
	return func(done, total int64) { tell(Progress{Part: part, Done: done, Total: total}) }
}

// SnapshotInfo is what a capture holds, recorded from what was written.
type SnapshotInfo struct {
	ID   string             `json:"id"`
	Kind fleet.SnapshotKind `json:"kind"`
	// Digest is of the whole: image, layers, devices and memory.
	Digest string `json:"digest"`
	// SizeBytes is what the capture added on the host's disk, MemoryBytes
	// what of it is guest memory, once zero pages are left out.
	SizeBytes   int64              `json:"size_bytes"`
	MemoryBytes int64              `json:"memory_bytes,omitempty"`
	Volatile    bool               `json:"volatile,omitempty"`
	Layers      int                `json:"layers"`
	SSHKeys     []string           `json:"ssh_keys,omitempty"` // kinds of host keys in the guest
	Source      VM                 `json:"source"`             // its shape; Dir and Slot mean nothing
	Machine     fleet.MachineFacts `json:"machine"`
	Timings     SnapshotTimings    `json:"timings"`
	TakenAt     time.Time          `json:"taken_at"`
}

// SnapshotTimings are the fleet's, and how the memory was copied.
type SnapshotTimings struct {
	fleet.SnapshotTimings
	// Background is false where the machine had to stand still while its
	// memory was copied; why is in Facts.Missing.
	Background bool `json:"background"`
}

// Differences names what keeps a live capture of a machine from being resumed
// on one of the facts host, in words; none: nothing does. Kernel and guest agent
// come with the capture.
func Differences(capture, host fleet.MachineFacts) []string {
	var out []string
	for _, f := range []struct{ name, has, wants string }{
		{"driver", host.Driver, capture.Driver}, {"architecture", host.Arch, capture.Arch},
		{"QEMU version", host.DriverVersion, capture.DriverVersion}, {"machine type", host.Machine, capture.Machine},
		{"CPU model", host.CPUModel, capture.CPUModel}, {"accelerator", host.Accelerator, capture.Accelerator},
		{"page size", fmt.Sprint(host.PageSize), fmt.Sprint(capture.PageSize)},
	} {
		if f.has != f.wants {
			out = append(out, fmt.Sprintf("%s is %q here and %q in the snapshot", f.name, f.has, f.wants))
		}
	}
	return out
}

// Revived is a machine that runs again, or anew, from a capture.
type Revived struct {
	Instance Instance
	Live     bool
	// ThawKey opens the guest of a live one for its renewal; until then it does
	// nothing for anybody.
	ThawKey string
	// Guest is what the driver knows of the guest that is to be renewed.
	Guest Renewable
	// Keep makes it count. Until then another start of this program finds what
	// was before: the earlier machine, or the paused one. Nil after a fork.
	Keep func(ctx context.Context) error
	// Undo goes back to that and ends this machine; Instance is closed then, and
	// Before runs again. Nil after a fork, which Remove undoes.
	Undo func(ctx context.Context) error
	// Before is the earlier instance, which stands still: Keep closes it, Undo
	// lets it go on. Nil for a paused machine.
	Before Instance
	// Resumed is how long the machine took from its start to running.
	Resumed time.Duration
}

// Renewable is what a guest that goes on from memory is told of itself.
type Renewable struct {
	Hostname, MachineID string
	Token               string
	CertPEM, KeyPEM     []byte
	Address             string // with prefix; empty: not checked
	Nameservers         []string
	SSHKeys             []string // kinds of host keys that it has
}

// Snapshotter is a Driver that captures machines and revives them. The core
// never calls two at once for the same VM; it may use one capture for many VMs
// at once, but discards it only when nobody does.
type Snapshotter interface {
	// Snapshot captures a running VM, which goes on running whatever happens.
	// On error nothing is left in the artifact's directory.
	Snapshot(ctx context.Context, vm VM, req SnapshotRequest) (SnapshotInfo, error)
	// Fork starts vm, which never ran, from a capture. One with memory returns as
	// soon as the machine runs; its guest is shut until it has been renewed. One
	// of the disk alone is booted with id and answers. On error all is undone.
	Fork(ctx context.Context, vm VM, id Identity, from Artifact, step func(string)) (Revived, error)
	// Restore replaces a running VM by a capture of itself. On error the VM runs
	// on as it did. Before a Keep, the earlier machine only stands still.
	Restore(ctx context.Context, vm VM, from Artifact, step func(string)) (Revived, error)
	// Pause sets a running VM aside: memory and disk are files in its directory
	// and nothing runs. On error it runs on. Adopt then gives a *PausedError.
	Pause(ctx context.Context, vm VM, step func(string)) (SnapshotInfo, error)
	// Resume brings it back. On error it stays paused.
	Resume(ctx context.Context, vm VM, step func(string)) (Revived, error)
	// Inspect reads what a capture is; verify reads all of it and compares
	// digests. What is damaged is a *DamagedError, and stays one.
	Inspect(ctx context.Context, a Artifact, verify bool) (SnapshotInfo, error)
	// Discard removes everything of a capture but the directory. It is
	// idempotent and works whatever is left. VMs made from it go on.
	Discard(ctx context.Context, a Artifact) error
	// SweepSnapshots compares the processes that hold memory with live and ends
	// those of captures that are gone, as Driver.Sweep does for VMs.
	SweepSnapshots(ctx context.Context, live []Artifact) (SweepReport, error)
}

// MemoryHolder is a Snapshotter that keeps the memory of captures in RAM, where
// forks share it.
type MemoryHolder interface {
	// Held lists whose memory is in RAM, with its bytes there.
	Held(ctx context.Context) (map[string]int64, error)
	// Unload gives that RAM back as soon as no machine uses it. The memory is
	// loaded again when it is wanted; of a volatile capture it is lost.
	Unload(ctx context.Context, a Artifact) error
	// Needs is the most that a capture of a running VM's memory takes of the
	// host's while it is made, in bytes.
	Needs(ctx context.Context, vm VM) (int64, error)
}

// ErrUnsure says of what failed that it could not be undone either: whether the
// VM runs is not known before it is adopted anew.
var ErrUnsure = errors.New("what runs of the vm is not known")

// PausedError says that a VM is set aside: it neither runs nor is gone.
type PausedError struct{ Info SnapshotInfo }

func (e *PausedError) Error() string { return "vm is paused" }

// DamagedError says that a capture is not what was written; it is never used.
type DamagedError struct {
	ID  string
	Why string
}

func (e *DamagedError) Error() string { return "snapshot " + e.ID + " is damaged: " + e.Why }

// NotSeedableError refuses what needs another kind of capture.
type NotSeedableError struct{ Why string }

func (e *NotSeedableError) Error() string { return e.Why }

// IncompatibleError refuses to resume a capture on this host, by name.
type IncompatibleError struct{ Differences []string }

func (e *IncompatibleError) Error() string {
	text := "the snapshot cannot be resumed on this host"
	for i, d := range e.Differences {
		text += []string{": ", "; "}[min(i, 1)] + d
	}
	return text
}
