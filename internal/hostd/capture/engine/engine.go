// Package engine captures running machines: it streams the state of one instant
// into a template process, keeps memory and disk layers with their digests, and
// has the memory held for those that go on from it. docs/design/snapshots.md has
// the picture.
package engine

import (
	"context"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/capture/chain"
	"github.com/fusevm/fuse/internal/hostd/capture/live"
	"github.com/fusevm/fuse/internal/hostd/capture/manifest"
	"github.com/fusevm/fuse/internal/hostd/capture/uffd"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/qmp"
	"github.com/fusevm/fuse/internal/hostd/vmm"
	"github.com/fusevm/fuse/internal/hostd/vmm/reap"
	"github.com/fusevm/fuse/internal/keylock"
)

// Host is what captures need of their host.
type Host struct {
	Dir     string // on the disk that captures are on
	Machine vmm.Machine
	Images  *image.Store
	Reaper  reap.Reaper
	Slots   bool // guests have taps
	// UID is the user of a slot's process; negative: this program's.
	UID     func(slot int) int
	Facts   func(ctx context.Context, vm driver.VM) (fleet.MachineFacts, error)
	Program func() (string, error)
	Room    func() error // refuses what would leave the disk too full
}

// Engine captures machines of one registry.
type Engine struct {
	Host
	Checker   manifest.Checker
	Userfault uffd.Lender

	loading keylock.Lock // by id of a capture, while its memory is found

	mu   sync.Mutex
	busy map[string]bool // ids of captures under way
}

// Guest is a guest agent that can be made to stand still.
type Guest interface {
	Freeze(ctx context.Context, o guestwire.FreezeOptions) (guestwire.Frozen, error)
	Release(ctx context.Context) (time.Duration, error)
}

// Source is a machine that runs.
type Source struct {
	VM          driver.VM
	PID         int
	QMP         live.Monitor
	Guest       Guest
	Alive       context.Context // ends when the process does
	ImageDigest string
	Image       guestwire.BootImage
	Services    []guestwire.BootServiceImage // whose disks are in the VM's directory
	Machine     fleet.MachineFacts
	Disk        chain.Chain
	// Record makes the disk's layers durable.
	Record func(chain.Chain) error
	// Free ends the protection of the machine's memory.
	Free func() error
	// Watch has a function called with stops and resumptions; nil ends that.
	Watch func(func(qmp.Event))
}
