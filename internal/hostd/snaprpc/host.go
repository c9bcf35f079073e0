// Package snaprpc serves captures of a host's machines to its control plane:
// it takes, restores, lists and deletes them, begins machines with them, and
// sets machines aside and brings them back.
package snaprpc

import (
	"context"
	"errors"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/raise"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

// VM is a machine that one operation has to itself.
type VM struct {
	driver.VM
	Instance driver.Instance // nil: it is paused
	// Runs says that it runs as inst from now on.
	Runs func(inst driver.Instance)
	// Stands says that it is paused from now on.
	Stands func()
	// Ended says that it has ended, and why.
	Ended func(cause, detail string)
	// Unsure says that nobody knows what runs of it: it is looked at as at a start
	// of this program, and nothing of it is removed.
	Unsure func()
	// Wake takes the memory of a paused one back, or refuses; asleep undoes it.
	Wake func() (asleep func(), err error)
}

// lost has a machine looked at anew if the driver does not know what runs of it,
// and says whether it does not.
func (vm VM) lost(err error) bool {
	if !errors.Is(err, driver.ErrUnsure) {
		return false
	}
	if vm.Instance != nil {
		select {
		case <-vm.Instance.Done(): // it has ended, which is noticed anyway
			return false
		default:
		}
	}
	vm.Unsure()
	return true
}

// Outcome is what an operation's answer keeps.
type Outcome struct {
	Boot        fleet.BootRecord
	Certificate *fleet.Certificate
	Bytes       int64
}

// Op is an operation on one VM. It is done once, whoever repeats it; a paused VM
// is refused unless Paused.
type Op struct {
	Verb   string
	Limit  time.Duration
	Paused bool
	Do     func(ctx context.Context, vm VM) (Outcome, error)
}

// Host is the host agent's core.
type Host interface {
	// Once admits an operation and does it, alone with its VM. It goes on when
	// ctx ends, and ends with the VM.
	Once(ctx context.Context, f *hostwirev1.Fence, r *hostwirev1.Ref, op Op) (Outcome, error)
	// CreateFrom is a create that begins with src.
	CreateFrom(ctx context.Context, req *hostwirev1.CreateVMRequest, src raise.Source, step func(string) error) (*hostwirev1.CreateVMResult, error)
	// Fenced refuses a call of who does not lead its fleet now.
	Fenced(f *hostwirev1.Fence) error
	// Complete says whether a listing can be believed, and if not why.
	Complete() (ok bool, reason string)
}
