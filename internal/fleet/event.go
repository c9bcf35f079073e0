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
	EntityType string `json:"entity_type"` // vm, task, host, snapshot, secrets, auth
	EntityID   string `json:"entity_id"`
	UID        string `json:"uid,omitempty"` // the life it belongs to, for VMs
	Type       string `json:"type"`          // e.g. vm.running
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

// Event types (inventory 7.6).
const (
	EventVMProvisioning   = "vm.provisioning"
	EventVMScheduled      = "vm.scheduled"
	EventVMRunning        = "vm.running"
	EventVMFailed         = "vm.provision_failed"
	EventVMDraining       = "vm.draining"
	EventVMDrained        = "vm.drained"
	EventVMDrainFailed    = "vm.drain_failed"
	EventVMDestroying     = "vm.destroying"
	EventVMRemoved        = "vm.removed"
	EventVMRecovered      = "vm.recovered"
	EventVMDestroyRetried = "vm.destroy_retried"
	EventVMOrphanDestroy  = "vm.orphan_destroyed"
	EventVMOrphanDead     = "vm.orphan_dead_lettered"
	EventTaskAssigned     = "task.assigned"
	EventTaskRunning      = "task.running"
	EventTaskCompleted    = "task.completed"
	EventTaskFailed       = "task.failed"
	EventSecretsDeployed  = "secrets.deployed"
	EventHostRegistered   = "host.registered"
	EventHostCordoned     = "host.cordoned"
	EventHostUncordoned   = "host.uncordoned"
	EventHostRemoved      = "host.removed"
	EventAuthFailed       = "auth.failed"
	EventIPRejected       = "ip.rejected"
)
