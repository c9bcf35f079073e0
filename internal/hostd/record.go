package hostd

import (
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/fence"
	"github.com/fusevm/fuse/internal/hostd/ops"
)

// owner says whose VM this is and what was asked for. It is durable before
// anything else is made for the VM.
type owner struct {
	RegistryID string `json:"registry_id"`
	FleetID    string `json:"fleet_id"`
	OpID       string `json:"op_id"` // of the create
	// Mark is the fleet's as it was made, for a registry that loses its log.
	Mark fence.Mark `json:"mark,omitzero"`

	VM driver.VM `json:"vm"`
	At time.Time `json:"at"`
}

// maxSlot bounds what a record that was read back can claim.
const maxSlot = 1 << 20

// sound reports whether a record that was read back can be acted on.
func (o owner) sound() bool {
	return o.FleetID != "" && o.VM.Slot >= 1 && o.VM.Slot <= maxSlot && ops.ValidUID.MatchString(o.VM.UID) && ops.ValidVMID.MatchString(o.VM.ID)
}

// Verbs of operations whose answers are kept.
const (
	verbCreate = "create"
	verbDrain  = "drain"
)

// answer is the first and only answer to an operation.
type answer struct {
	UID    string            `json:"uid"`
	Verb   string            `json:"verb"`
	OpID   string            `json:"op_id"`
	Error  *ops.KeptError    `json:"error,omitempty"`
	Digest string            `json:"digest,omitempty"`
	Boot   fleet.BootRecord  `json:"boot,omitzero"`
	Status *fleet.ExecStatus `json:"status,omitempty"`
	// Certificate is of a machine that went on from memory, Bytes what a pause
	// or a snapshot takes of the disk.
	Certificate *fleet.Certificate `json:"certificate,omitempty"`
	Bytes       int64              `json:"bytes,omitempty"`
}

// ended is what is kept of a life that was cleared, so that a repeat of its
// operations gets its answer and nothing can create it again.
type ended struct {
	UID     string    `json:"uid"`
	VMID    string    `json:"vm_id"`
	FleetID string    `json:"fleet_id"`
	At      time.Time `json:"at"`
	Answers []answer  `json:"answers,omitempty"`
}

// record is one line of the log; exactly one field is set.
type record struct {
	Mark   *fence.Mark       `json:"mark,omitempty"`
	Owner  *owner            `json:"owner,omitempty"`
	Answer *answer           `json:"answer,omitempty"`
	Exit   *fleet.ExitRecord `json:"exit,omitempty"`
	Ended  *ended            `json:"ended,omitempty"`
	// Condemned is the uid of a life whose removal has begun.
	Condemned string `json:"condemned,omitempty"`
}
