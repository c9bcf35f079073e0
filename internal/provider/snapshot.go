package provider

import (
	"context"
	"sync"

	"github.com/fusevm/fuse/internal/fleet"
)

// SnapshotProgress is how far a capture, a restore, a pause, a resumption or the
// reading of a seed is, in bytes; Total and Rate are zero where they are not known.
type SnapshotProgress struct {
	Phase       string
	Done, Total int64
	Rate        int64 // bytes a second
}

// Doing is how far work at hosts is, by what it is done with. Its zero value is
// ready for use.
type Doing struct {
	mu sync.Mutex
	by map[string]SnapshotProgress // guarded by mu
}

// Of is how far the work with id is; ok is false while its host does not say.
func (d *Doing) Of(id string) (p SnapshotProgress, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok = d.by[id]
	return p, ok
}

// Note keeps what tell is told for who asks, until end is called.
func (d *Doing) Note(id string) (tell func(SnapshotProgress), end func()) {
	tell = func(p SnapshotProgress) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.by == nil {
			d.by = map[string]SnapshotProgress{}
		}
		d.by[id] = p
	}
	return tell, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.by, id)
	}
}

// TakeRequest is one snapshot to take.
type TakeRequest struct {
	// SnapshotID is the caller's; the host keeps what it writes by it.
	SnapshotID string
	// Live asks for memory too. What was written is what the artifact's Kind says.
	Live bool
	// Volatile is one that need not outlive the host's boot, such as what only
	// forks of the moment are made from.
	Volatile bool
	Progress func(SnapshotProgress) // may be nil
}

// RestoreRequest puts a VM back to a snapshot of its own.
type RestoreRequest struct {
	SnapshotID string
	Digest     string // of the record: other bytes are refused
	Kind       fleet.SnapshotKind
	Progress   func(SnapshotProgress) // may be nil
}

// Resumed is how a machine went on.
type Resumed struct {
	// Certificate is nil where it booted anew.
	Certificate *fleet.Certificate
	Boot        fleet.BootRecord
}

// Checkpointer is implemented by environments that can be captured and put
// back (seed: SnapshotCapable, LiveSnapshotCapable, SnapshotDigester). The
// operation id of the handle makes a repeat get the first answer.
type Checkpointer interface {
	// TakeSnapshot captures the running VM, which runs on whatever comes of it.
	// The work goes on when the caller leaves. When the answer was lost the
	// caller must delete the snapshot.
	TakeSnapshot(ctx context.Context, req TakeRequest) (fleet.Artifact, error)
	// RestoreSnapshot returns once the VM runs from the snapshot and its guest
	// has answered. When it fails the VM is as it was before, or has ended.
	RestoreSnapshot(ctx context.Context, req RestoreRequest) (Resumed, error)
}

// Pauser is implemented by environments that can stand still without CPU and
// memory. Both are idempotent.
type Pauser interface {
	// Pause keeps memory and disk and gives the VM's RAM back. A failed pause
	// leaves the VM running. tell may be nil, and is not called once it has returned.
	Pause(ctx context.Context, tell func(SnapshotProgress)) (keptBytes int64, err error)
	// Resume goes on; a failed one leaves it paused.
	Resume(ctx context.Context, tell func(SnapshotProgress)) (Resumed, error)
}

// Seed is what a VM is made from instead of an image.
type Seed struct {
	SnapshotID string
	Digest     string // of the record: other bytes are refused
	// Live goes on from the memory; else the VM boots from the disk.
	Live bool
	// Files are written once the VM has its own identity and before any
	// process of the seed's goes on.
	Files []fleet.GuestFile
	// Tell is told how far the host is with reading it; may be nil.
	Tell func(SnapshotProgress)
}

// Snapshotter is implemented by providers whose host keeps snapshots (seed:
// SnapshotForkable, SnapshotDeleter, ArtifactDeleter).
type Snapshotter interface {
	// CreateFromSnapshot is Create from a seed. A host that cannot answers
	// fleet.CodeUnimplemented: it never boots something else instead.
	CreateFromSnapshot(ctx context.Context, req CreateRequest, seed Seed) (Created, error)
	// Snapshots lists what the host keeps for this fleet.
	Snapshots(ctx context.Context) (SnapshotListing, error)
	// DeleteSnapshot removes one, and ends a capture of it that is under way.
	// One that is not there is success and cannot be written any more; one in use
	// is refused with fleet.ErrSnapshotInUse.
	DeleteSnapshot(ctx context.Context, id, opID string) error
}

// SnapshotListing is a host's answer to Snapshots.
type SnapshotListing struct {
	// Complete is false until the host knows all that it keeps. Only then does
	// absence from the list tell anything.
	Complete  bool
	Reason    string // why it is not complete
	Snapshots []fleet.Artifact
	Foreign   int
}
