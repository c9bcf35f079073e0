package hostd

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strconv"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

// owner says whose VM this is and what was asked for. It is durable before
// anything else is made for the VM.
type owner struct {
	RegistryID string    `json:"registry_id"`
	FleetID    string    `json:"fleet_id"`
	OpID       string    `json:"op_id"` // of the create
	VM         driver.VM `json:"vm"`
	At         time.Time `json:"at"`
}

// sound reports whether a record that was read back can be acted on.
func (o owner) sound() bool {
	return o.FleetID != "" && o.VM.Slot >= 1 && validUID.MatchString(o.VM.UID) && validVMID.MatchString(o.VM.ID)
}

// mark is what the host holds of a fleet's leadership.
type mark struct {
	FleetID     string `json:"fleet_id"`
	Fingerprint string `json:"fingerprint"`
	Term        int64  `json:"term"`
	Token       string `json:"token"`
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
	Error  *answerError      `json:"error,omitempty"`
	Digest string            `json:"digest,omitempty"`
	Boot   fleet.BootRecord  `json:"boot,omitzero"`
	Status *fleet.ExecStatus `json:"status,omitempty"`
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
	Mark   *mark             `json:"mark,omitempty"`
	Owner  *owner            `json:"owner,omitempty"`
	Answer *answer           `json:"answer,omitempty"`
	Exit   *fleet.ExitRecord `json:"exit,omitempty"`
	Ended  *ended            `json:"ended,omitempty"`
	// Condemned is the uid of a life whose removal has begun.
	Condemned string `json:"condemned,omitempty"`
}

// encode renders a record as a line: checksum, space, JSON.
func (r record) encode() ([]byte, error) {
	doc, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	line := make([]byte, 0, len(doc)+10)
	line = fmt.Appendf(line, "%08x ", crc32.ChecksumIEEE(doc))
	line = append(line, doc...)
	return append(line, '\n'), nil
}

// decodeRecord reads a line without its newline; ok is false for one that was
// torn or damaged.
func decodeRecord(line []byte) (r record, ok bool) {
	if len(line) < 10 || line[8] != ' ' {
		return r, false
	}
	sum, err := strconv.ParseUint(string(line[:8]), 16, 32)
	if err != nil || crc32.ChecksumIEEE(line[9:]) != uint32(sum) {
		return r, false
	}
	return r, json.Unmarshal(line[9:], &r) == nil
}
