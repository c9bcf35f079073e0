package fleet

import (
	"encoding/json"
	"time"
)

// SnapshotKind is what a snapshot contains. It is recorded from what was
// written, never inferred; empty reads as disk.
type SnapshotKind string

// Snapshot kinds.
const (
	SnapshotKindDisk SnapshotKind = "disk"
	SnapshotKindLive SnapshotKind = "live"
)

// SnapshotMode is how a snapshot came about. Build artifacts are exempt from
// retention and quota.
type SnapshotMode string

// Snapshot modes.
const (
	SnapshotModeManual SnapshotMode = "manual"
	SnapshotModeAuto   SnapshotMode = "auto"
	SnapshotModeBuild  SnapshotMode = "build"
)

// SnapshotState is where a snapshot stands in its life.
type SnapshotState string

// Snapshot states.
const (
	SnapshotStateCreating  SnapshotState = "creating"
	SnapshotStateReady     SnapshotState = "ready"
	SnapshotStateRestoring SnapshotState = "restoring"
	SnapshotStateDeleting  SnapshotState = "deleting"
	SnapshotStateError     SnapshotState = "error"
)

// SnapshotExportStatus is the state of one export record.
type SnapshotExportStatus string

// Export states.
const (
	SnapshotExportPending SnapshotExportStatus = "pending"
	SnapshotExportReady   SnapshotExportStatus = "ready"
	SnapshotExportError   SnapshotExportStatus = "error"
)

// SnapshotExport is the record of one requested export.
type SnapshotExport struct {
	Destination string               `json:"destination"`
	Status      SnapshotExportStatus `json:"status"`
	RequestedAt time.Time            `json:"requested_at"`
	UpdatedAt   time.Time            `json:"updated_at"`
	LastError   string               `json:"last_error,omitempty"`
}

// Snapshot is the record of one checkpoint: lineage, retention, integrity.
type Snapshot struct {
	SnapshotID       string            `json:"snapshot_id"`
	VMID             string            `json:"vm_id"`
	UID              string            `json:"uid"`
	Owner            string            `json:"owner"`
	TaskID           string            `json:"task_id,omitempty"`
	HostID           string            `json:"host_id,omitempty"`
	TenantID         string            `json:"tenant_id,omitempty"`
	ParentSnapshotID string            `json:"parent_snapshot_id,omitempty"`
	Mode             SnapshotMode      `json:"mode"`
	LayerKey         string            `json:"layer_key,omitempty"`
	Arch             string            `json:"arch,omitempty"`
	Digest           string            `json:"digest,omitempty"`
	Kind             SnapshotKind      `json:"kind,omitempty"`
	State            SnapshotState     `json:"state"`
	SizeBytes        int64             `json:"size_bytes"`
	RetentionUntil   *time.Time        `json:"retention_until,omitempty"`
	Metadata         json.RawMessage   `json:"metadata,omitempty"`
	KeyID            string            `json:"key_id,omitempty"` // of the API key that asked for it, if one did
	Files            map[string]string `json:"files,omitempty"`  // the memory half: name to sha256
	Machine          MachineFacts      `json:"machine,omitzero"`
	Timings          SnapshotTimings   `json:"timings,omitzero"`
	// Ephemeral is one that was taken for forks: it goes when none is left.
	Ephemeral bool `json:"ephemeral,omitempty"`
	// Discard is set once it is of no use or somebody has deleted it: its end is
	// gone on with until its host confirms it.
	Discard   bool             `json:"discard,omitempty"`
	Exports   []SnapshotExport `json:"exports,omitempty"`
	LastError string           `json:"last_error,omitempty"`
	CreatedAt time.Time        `json:"created_at"`
	UpdatedAt time.Time        `json:"updated_at"`
	Revision  uint64           `json:"revision"`
}

// DeadLetterKind is the kind of failure that was given up on.
type DeadLetterKind string

// Dead letter kinds: the seed's three, and ours.
const (
	DeadLetterOrphanDestroy DeadLetterKind = "orphan_destroy"
	DeadLetterStuckTask     DeadLetterKind = "stuck_task"
	DeadLetterIdleTimeout   DeadLetterKind = "idle_timeout"
	DeadLetterDestroyFailed DeadLetterKind = "destroy_failed"
)

// DeadLetterKinds lists every kind.
var DeadLetterKinds = []DeadLetterKind{
	DeadLetterOrphanDestroy, DeadLetterStuckTask, DeadLetterIdleTimeout, DeadLetterDestroyFailed,
	DeadLetterMarqueeQuarantined, DeadLetterPlaygroundRepairs, DeadLetterPlaygroundDestruction,
}

// DeadLetterOf is the kind of an end that leaves a dead letter; ok is false for
// the others.
func DeadLetterOf(rule string) (kind DeadLetterKind, ok bool) {
	kind, ok = map[string]DeadLetterKind{RuleStuckTask: DeadLetterStuckTask, RuleIdleTimeout: DeadLetterIdleTimeout}[rule]
	return kind, ok
}

// DeadLetter is a failure kept for people, unique by kind and entity: a
// repeat raises RetryCount and LastSeenAt. Nothing drains it.
type DeadLetter struct {
	Kind        DeadLetterKind  `json:"kind"`
	EntityID    string          `json:"entity_id"`
	TaskID      string          `json:"task_id,omitempty"`
	Reason      string          `json:"reason"`
	RetryCount  int             `json:"retry_count"`
	Payload     json.RawMessage `json:"payload,omitempty"`
	FirstSeenAt time.Time       `json:"first_seen_at"`
	LastSeenAt  time.Time       `json:"last_seen_at"`
}
