// Package entry is what the host agent's log says: who owns a VM, how operations
// were answered, how lives ended.
package entry

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/fence"
	"github.com/fusevm/fuse/internal/hostd/ops"
)

// Owner says whose VM this is and what was asked for. It is durable before
// anything else is made for the VM.
type Owner struct {
	RegistryID string `json:"registry_id"`
	FleetID    string `json:"fleet_id"`
	OpID       string `json:"op_id"` // of the create
	// Mark is the fleet's as it was made, for a registry that loses its log.
	Mark fence.Mark `json:"mark,omitzero"`

	VM driver.VM `json:"vm"`
	At time.Time `json:"at"`
}

// MaxSlot bounds what a record that was read back can claim.
const MaxSlot = 1 << 20

// Sound reports whether a record that was read back can be acted on.
func (o Owner) Sound() bool {
	return o.FleetID != "" && o.VM.Slot >= 1 && o.VM.Slot <= MaxSlot && ops.ValidUID.MatchString(o.VM.UID) && ops.ValidVMID.MatchString(o.VM.ID)
}

// ownerFile is the owner record in the VM's own directory: it lets a registry
// that lost its log know its VMs again.
const ownerFile = "owner.json"

// Write writes the record into the VM's directory.
func (o Owner) Write(dir string) error {
	doc, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode the owner record: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, ownerFile), doc, 0o600); err != nil {
		return fmt.Errorf("write the owner record: %w", err)
	}
	return nil
}

// ReadOwner reads it back.
func ReadOwner(dir string) (o Owner, err error) {
	doc, err := os.ReadFile(filepath.Join(dir, ownerFile))
	if err != nil {
		return o, err
	}
	return o, json.Unmarshal(doc, &o)
}

// Verbs of operations whose answers are kept.
const (
	VerbCreate = "create"
	VerbDrain  = "drain"
)

// Answer is the first and only answer to an operation.
type Answer struct {
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

// Ended is what is kept of a life that was cleared, so that a repeat of its
// operations gets its answer and nothing can create it again.
type Ended struct {
	UID     string    `json:"uid"`
	VMID    string    `json:"vm_id"`
	FleetID string    `json:"fleet_id"`
	At      time.Time `json:"at"`
	Answers []Answer  `json:"answers,omitempty"`
}

// Record is one line of the log; exactly one field is set.
type Record struct {
	Mark   *fence.Mark       `json:"mark,omitempty"`
	Owner  *Owner            `json:"owner,omitempty"`
	Answer *Answer           `json:"answer,omitempty"`
	Exit   *fleet.ExitRecord `json:"exit,omitempty"`
	Ended  *Ended            `json:"ended,omitempty"`
	// Condemned is the uid of a life whose removal has begun.
	Condemned string `json:"condemned,omitempty"`
}

// Failure is the error that the operation was answered with.
func (a Answer) Failure() error { return a.Error.Err() }

// Answered returns the recorded answer to an operation.
func Answered(answers []Answer, verb, opID string) (Answer, bool) {
	for _, a := range answers {
		if a.Verb == verb && a.OpID == opID {
			return a, true
		}
	}
	return Answer{}, false
}
