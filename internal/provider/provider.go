// Package provider is the port through which the control plane reaches the
// machines that run VMs. It keeps the seed's shape (Provider, Environment and
// optional capabilities), with one change: every call names the life it means
// and carries a fence, and a listing says whether it is complete.
package provider

import (
	"context"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Fence proves to a host that a call comes from the control plane that owns
// the fleet now. A host refuses a lower term than the highest it has seen.
type Fence struct {
	FleetID     string
	Term        int64
	ClaimToken  string
	Fingerprint string // of the store that issued the term
	// Revision is that of the store's newest durable change.
	Revision uint64
	// Volatile says that the store forgets with its process.
	Volatile bool
}

// Fencer hands out the current fence, or an error once leadership is gone. It
// is asked before every remote mutation.
type Fencer interface {
	Fence() (Fence, error)
}

// Proof shows a host that the fleet's store also held an earlier term.
type Proof struct {
	Token string // empty: the store does not know that term
	// Revision is how far the store had come when that term had ended.
	Revision uint64
}

// Prover is implemented by fencers whose store remembers its earlier terms.
// Without it a store can claim only hosts that have not seen its fleet.
type Prover interface {
	Proof(term int64) Proof
	// Accepted reports whether the operator confirmed, for this start, that the
	// store replaces the one that hosts know.
	Accepted() bool
}

// Ref names one life of a VM and one operation on it. A host answers a
// repeated OpID with its first answer.
type Ref struct {
	ID         string
	UID        string
	Generation int64
	OpID       string
}

// Credentials are what makes one guest different from the next.
type Credentials struct {
	Hostname  string
	MachineID string
	Token     string
	CertPEM   []byte
	KeyPEM    []byte
}

// CreateRequest is one VM to make and boot.
type CreateRequest struct {
	Ref
	Spec        fleet.Spec
	Credentials Credentials
	// Golden says whether a golden snapshot may stand in for the boot.
	Golden Golden
	// Progress is called as the host begins each named step; may be nil.
	Progress func(step string)
}

// Created is what a host reports of a VM that it booted.
type Created struct {
	Environment Environment
	ImageDigest string
	Boot        fleet.BootRecord
	// Certificate is nil for a VM that booted.
	Certificate *fleet.Certificate
}

// Golden says whether a host may resume a golden snapshot instead of booting,
// and leave one.
type Golden string

// The empty value is GoldenAuto.
const (
	GoldenAuto Golden = "auto"
	GoldenOff  Golden = "off"
)

// Provider manages the VMs of one host.
type Provider interface {
	// Create makes and boots a VM and returns when its guest answers. It
	// leaves nothing behind when it fails with an answer from the host; when
	// the answer was lost the caller must Destroy.
	Create(ctx context.Context, req CreateRequest) (Created, error)
	// Get asks the host for one VM of ours; not_found if it has none.
	Get(ctx context.Context, ref Ref) (fleet.ObservedVM, error)
	// Open returns a handle without asking the host.
	Open(ref Ref) Environment
	// Destroy ends a VM and returns once the host has cleared everything.
	// A VM that is not there is success.
	Destroy(ctx context.Context, ref Ref) error
	// List looks at the host. An error means that the host could not be seen.
	List(ctx context.Context) (Listing, error)
	// Close releases connections.
	Close() error
}

// Listing is a host's answer to List.
type Listing struct {
	Facts    fleet.HostFacts
	Complete bool   // false until the host has adopted what it ran before
	Reason   string // why it is not complete
	VMs      []fleet.ObservedVM
	Exits    []fleet.ExitRecord
	Foreign  int
	// ForeignFleets counts the foreign VMs by fleet; those whose owner cannot
	// be read have an empty id.
	ForeignFleets map[string]int
	// Capacity is what the host says it takes; zero from one that does not say.
	Capacity fleet.HostCapacity
}

// As finds a capability of a provider, also of one that is wrapped: a wrapper
// has a method Unwrap.
func As[T any](p Provider) (capability T, ok bool) {
	for p != nil {
		if capability, ok = p.(T); ok {
			return capability, true
		}
		w, wraps := p.(interface{ Unwrap() Provider })
		if !wraps {
			break
		}
		p = w.Unwrap()
	}
	return capability, false
}

// CapacityProber is implemented by providers that can report a host's real
// hardware and facts (seed).
type CapacityProber interface {
	Capacity(ctx context.Context) (fleet.HostCapacity, fleet.HostFacts, error)
}

// VerdictLister is implemented by providers whose listing brings along what the
// healthchecks of guests say: of those lives, as far as they can be read in
// time. One slow guest delays it by about a second.
type VerdictLister interface {
	ListVerdicts(ctx context.Context, probed []string) (Listing, error)
}

// Claimer is implemented by providers whose host keeps a durable mark per
// fleet: Claim raises it once when a term begins. Once that has worked out it
// costs nothing, until the host shows that its mark has moved. A host that
// does not take the store answers fleet.ErrFenced, also to every change.
type Claimer interface {
	Claim(ctx context.Context) (Claimed, error)
}

// Claimed is how a term was claimed at a host.
type Claimed struct {
	Term int64
	// Replaced is the term of the other store's mark that this one replaced on
	// the operator's word; zero: the mark was this store's own, or none.
	Replaced int64
}

// Purger is implemented by providers whose host can clear away what another
// fleet left, on the word of an operator.
type Purger interface {
	// PurgeFleet destroys the VMs of another fleet. It is refused while that
	// fleet is led, unless force is set. Failed ones are tried on by the host.
	PurgeFleet(ctx context.Context, fleetID string, force bool) (destroyed, failed int, err error)
}

// MetricsReader is implemented by providers whose host exports figures of its
// own, in the Prometheus text format.
type MetricsReader interface {
	Metrics(ctx context.Context) ([]byte, error)
}

// Environment is a running VM.
type Environment interface {
	// Name returns the VM id.
	Name() string
	// URL returns the reachable address of the guest agent, or "".
	URL() string
	// ExecStream runs a command with its streams wired. A non-zero exit is no
	// error; an error means that the command could not be run or watched.
	ExecStream(ctx context.Context, spec fleet.ExecSpec, io fleet.Stdio) (fleet.ExecStatus, error)
	// Upload writes files into the guest.
	Upload(ctx context.Context, files []fleet.GuestFile) error
	// Drain stops the guest's services and runs command if not empty.
	Drain(ctx context.Context, command string) (fleet.ExecStatus, error)
}

// ExecResult is the outcome of a buffered command; both streams are byte
// exact. Truncated means that a stream went over the limit and its end is
// missing.
type ExecResult struct {
	fleet.ExecStatus
	Stdout, Stderr []byte
	Truncated      bool
}

// ClampExecTimeout applies the bounds of a buffered exec: zero takes the
// default, more than the maximum takes the maximum (seed: ExecOptions).
func ClampExecTimeout(d time.Duration) time.Duration {
	if d <= 0 {
		return fleet.DefaultExecTimeout
	}
	return min(d, fleet.MaxExecTimeout)
}
