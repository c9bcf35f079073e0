package fleet

import (
	"encoding/json"
	"strconv"
	"time"
)

// Event is one durable fact, written in the transaction that made it true.
// Seq is dense and rises by one with each event of the fleet.
type Event struct {
	Seq        uint64 `json:"seq"`
	EntityType string `json:"entity_type"` // vm, task, host, snapshot, secrets, auth, webhook
	EntityID   string `json:"entity_id"`
	UID        string `json:"uid,omitempty"` // the life it belongs to, for VMs
	Type       string `json:"type"`          // e.g. vm.running
	// VMID, HostID and Owner say what the event concerns beside its entity.
	// Those left empty are taken by the state owner from the row of the life,
	// host or snapshot; they are what subscriptions select by.
	VMID   string `json:"vm_id,omitempty"`
	HostID string `json:"host_id,omitempty"`
	Owner  string `json:"owner,omitempty"`
	// State is set on events that change a VM's state; those are what a
	// per-environment stream sends.
	State   VMState         `json:"state,omitempty"`
	URL     string          `json:"url,omitempty"`
	Error   string          `json:"error,omitempty"`
	Reason  *Reason         `json:"reason,omitempty"`
	Payload json.RawMessage `json:"payload,omitempty"`
	At      time.Time       `json:"at"`
}

// EventID renders a sequence number as the opaque id on the wire.
func EventID(seq uint64) string { return strconv.FormatUint(seq, 10) }

// ParseEventID reads an id made by EventID; ok is false for anything else.
func ParseEventID(id string) (seq uint64, ok bool) {
	seq, err := strconv.ParseUint(id, 10, 64)
	return seq, err == nil
}

// Entity types of events.
const (
	EntityVM       = "vm"
	EntityTask     = "task"
	EntityHost     = "host"
	EntitySnapshot = "snapshot"
	EntitySecrets  = "secrets"
	EntityAuth     = "auth"
	EntityWebhook  = "webhook"
	EntityKey      = "api_key"
	// EntityJoinToken is a token with which hosts register themselves.
	EntityJoinToken = "join_token"
	EntityQuota     = "quota" // its id is owner:NAME or key:ID
	// EntityReconcile is the loop itself: its id is a host, or "fleet".
	EntityReconcile = "reconcile"
)

// Rules of events that end nothing. Those by which something ends stand with
// the environment.
const (
	RuleRequested = "requested" // somebody asked for it
	RulePlacement = "placement" // the scheduler picked a host
	RuleSettled   = "settled"   // work that was claimed is done
	RuleSeen      = "seen"      // a look at a host showed it
	RuleRefused   = "refused"   // a request was not let in
	RuleRetention = "retention" // its time to be kept is over
	RuleDelivery  = "delivery"  // what became of a webhook's messages

	RuleHealthcheck = "healthcheck" // a probe's verdict
	RuleUsed        = "used"        // somebody used what stood still
	RuleBudget      = "budget"      // a pass may not begin more destructions now
)

// Event types (inventory 7.6, and ours). docs/reference/events.md tells what
// each means; a test holds the two to each other.
const (
	EventVMProvisioning   = "vm.provisioning"
	EventVMScheduled      = "vm.scheduled"
	EventVMHostRefused    = "vm.host_refused"
	EventVMRunning        = "vm.running"
	EventVMFailed         = "vm.provision_failed"
	EventVMDraining       = "vm.draining"
	EventVMDrained        = "vm.drained"
	EventVMDrainFailed    = "vm.drain_failed"
	EventVMDrainSkipped   = "vm.drain_skipped"
	EventVMDestroying     = "vm.destroying"
	EventVMRemoved        = "vm.removed"
	EventVMRecovered      = "vm.recovered"
	EventVMForked         = "vm.forked"
	EventVMTokenRotated   = "vm.token_rotated"
	EventVMAmended        = "vm.amended"
	EventVMRebooted       = "vm.rebooted"
	EventVMIdleSuspected  = "vm.idle_suspected"
	EventVMHealthChanged  = "vm.health_changed"
	EventVMDestroyRetried = "vm.destroy_retried"
	EventVMOrphanDestroy  = "vm.orphan_destroyed"
	EventVMOrphanDead     = "vm.orphan_dead_lettered"

	EventTaskAssigned       = "task.assigned"
	EventTaskRunning        = "task.running"
	EventTaskCompleted      = "task.completed"
	EventTaskFailed         = "task.failed"
	EventTaskStuckSuspected = "task.stuck_suspected"

	EventSecretsDeployed       = "secrets.deployed"
	EventSecretsRecovered      = "secrets.recovered"
	EventSecretsRecoveryFailed = "secrets.recovery_failed"

	EventSnapshotCreating = "snapshot.creating"
	EventSnapshotCreated  = "snapshot.created"
	EventSnapshotFailed   = "snapshot.failed"
	EventSnapshotLost     = "snapshot.lost"
	EventSnapshotOrphan   = "snapshot.orphan_deleted"

	EventSnapshotDeleteFailed  = "snapshot.delete_failed"
	EventSnapshotRestoring     = "snapshot.restoring"
	EventSnapshotRestoreFailed = "snapshot.restore_failed"

	EventVMPausing      = "vm.pausing"
	EventVMPaused       = "vm.paused"
	EventVMPauseFailed  = "vm.pause_failed"
	EventVMResuming     = "vm.resuming"
	EventVMResumed      = "vm.resumed"
	EventVMResumeFailed = "vm.resume_failed"

	EventSnapshotRestored  = "snapshot.restored"
	EventSnapshotDeleted   = "snapshot.deleted"
	EventSnapshotGCDeleted = "snapshot.gc_deleted"
	EventSnapshotGCFailed  = "snapshot.gc_failed"
	EventArtifactPulled    = "artifact.pulled"
	EventArtifactGCDeleted = "artifact.gc_deleted"
	EventArtifactGCFailed  = "artifact.gc_failed"

	EventHostRegistered  = "host.registered"
	EventHostCordoned    = "host.cordoned"
	EventHostUncordoned  = "host.uncordoned"
	EventHostRemoved     = "host.removed"
	EventHostUnreachable = "host.unreachable"
	EventHostReachable   = "host.reachable"
	EventHostCapacity    = "host.capacity_changed"
	EventHostLabelled    = "host.labelled"
	EventHostRebooted    = "host.rebooted"
	EventHostReturned    = "host.returned"
	EventHostForgotten   = "host.forgotten"
	EventHostCertificate = "host.certificate_changed"
	EventHostRepinned    = "host.repinned"

	EventHostDrainStarted   = "host.drain_started"
	EventHostDrainProgress  = "host.drain_progress"
	EventHostDrainCancelled = "host.drain_cancelled"
	EventHostDrained        = "host.drained"

	EventJoinTokenCreated = "host.join_token_created"
	EventJoinTokenRevoked = "host.join_token_revoked"
	EventJoinRefused      = "host.join_refused"

	EventSnapshotInterrupted = "snapshot.interrupted"

	EventHostFenced        = "host.fenced"
	EventHostStoreAccepted = "host.store_accepted"
	EventHostPurged        = "host.purged"

	EventReconcileBudget  = "reconcile.budget_exhausted"
	EventReconcilePaused  = "reconcile.paused"
	EventReconcileResumed = "reconcile.resumed"

	EventAuthFailed = "auth.failed"
	EventIPRejected = "ip.rejected"

	EventKeyCreated = "api_key.created"
	EventKeyRevoked = "api_key.revoked"

	EventQuotaSet     = "quota.set"
	EventQuotaRemoved = "quota.removed"

	EventWebhookCreated        = "webhook.created"
	EventWebhookUpdated        = "webhook.updated"
	EventWebhookDeleted        = "webhook.deleted"
	EventWebhookDisabled       = "webhook.disabled"
	EventWebhookDeliveryFailed = "webhook.delivery_failed"
	EventWebhookResync         = "webhook.resync"
)
