package fleet

import (
	"fmt"
	"slices"
	"time"
)

// VMState is where a VM stands in its life. The first four are stored; the
// last two exist only on event streams, after the row is gone (seed: VMState).
type VMState string

// VM states.
const (
	VMStateProvisioning VMState = "provisioning"
	VMStateRunning      VMState = "running"
	VMStateDraining     VMState = "draining"
	VMStateDestroying   VMState = "destroying"
	VMStateDestroyed    VMState = "destroyed"
	VMStateFailed       VMState = "failed"
)

// IsTerminalState reports whether a stream of the VM's events ends with s.
func IsTerminalState(s VMState) bool { return s == VMStateDestroyed || s == VMStateFailed }

var vmTransitions = map[VMState][]VMState{
	"":                  {VMStateProvisioning},
	VMStateProvisioning: {VMStateProvisioning, VMStateRunning, VMStateDestroying},
	VMStateRunning:      {VMStateRunning, VMStateDraining, VMStateDestroying},
	VMStateDraining:     {VMStateDraining, VMStateDestroying},
	VMStateDestroying:   {VMStateDestroying},
}

// CanTransition reports whether a VM may go from one stored state to another.
// The empty state stands for "no row". A row may be removed only from
// provisioning (nothing was made) or destroying.
func CanTransition(from, to VMState) bool {
	if to == "" {
		return from == VMStateProvisioning || from == VMStateDestroying
	}
	return slices.Contains(vmTransitions[from], to)
}

// Reason says why something ended or changed: who (Actor), by which Rule, and
// on what Evidence. Nothing ends without one.
type Reason struct {
	Actor    string `json:"actor"`
	Rule     string `json:"rule"`
	Evidence string `json:"evidence,omitempty"`
}

func (r Reason) String() string {
	if r.Evidence == "" {
		return r.Rule + " by " + r.Actor
	}
	return fmt.Sprintf("%s by %s: %s", r.Rule, r.Actor, r.Evidence)
}

// Actors that end things. A person or key is "user:<name>".
const (
	ActorReconcile = "reconcile"
	ActorRecovery  = "recovery"
	ActorLifecycle = "lifecycle"
	ActorHost      = "host"
	ActorMaster    = "user:master"
	ActorOperator  = "operator" // who started the server, by a flag
)

// End rules. The first group keeps the names of the existing wire (inventory
// 7.6); the rest are ours.
const (
	RuleManualDestroy       = "manual_destroy"
	RuleMissingFromProvider = "missing_from_provider"
	RuleStuckTask           = "stuck_task"
	RuleIdleTimeout         = "idle_timeout"
	RuleTaskCompleted       = "task_completed"
	RuleProvisionFailed     = "provision_failed"
	RuleCreateInterrupted   = "create_interrupted"
	RuleOrphan              = "orphan"
	RuleHostLost            = "host_lost"
	RuleHostDrained         = "host_drained"
	RuleSuperseded          = "superseded" // a copy on another host has a higher generation
)

// VM is one environment's row. ID is prefix + task id and may be reused after
// the end; UID names one life of it, Generation counts the claims within it.
type VM struct {
	ID         string  `json:"id"`
	UID        string  `json:"uid"`
	Generation int64   `json:"generation"`
	Owner      string  `json:"owner"`            // principal that created it
	KeyID      string  `json:"key_id,omitempty"` // of the API key that asked for it, if one did
	State      VMState `json:"state"`
	TaskID     string  `json:"task_id"`
	HostID     string  `json:"host_id,omitempty"`
	URL        string  `json:"url,omitempty"`
	Spec       Spec    `json:"spec"`

	// Sealed columns: AES-256-GCM, bound to kind and uid. Never plain.
	AuthTokenSealed []byte `json:"auth_token_sealed,omitempty"`
	BootSealed      []byte `json:"boot_sealed,omitempty"` // BootOptions with secrets
	CertPEM         []byte `json:"cert_pem,omitempty"`    // public half of the guest's TLS pair
	// Rotation counts the rotations of the token that were begun. PendingSealed
	// is what the last one gives the guest, while it is under way.
	Rotation      int64  `json:"rotation,omitempty"`
	PendingSealed []byte `json:"pending_sealed,omitempty"`

	// Probed says that BootOptions declare a healthcheck.
	Probed       bool               `json:"probed,omitempty"`
	DrainCommand string             `json:"drain_command,omitempty"`
	ImageDigest  string             `json:"image_digest,omitempty"`
	Placement    *PlacementDecision `json:"placement,omitempty"`
	Endpoints    []Endpoint         `json:"endpoints,omitempty"`
	Boot         BootRecord         `json:"boot,omitzero"`
	// RebootedAt is when the guest last rebooted, as far as was told.
	RebootedAt  time.Time `json:"rebooted_at,omitzero"`
	LastError   string    `json:"last_error,omitempty"`
	DrainResult string    `json:"drain_result,omitempty"`
	// Paused is set while it stands still, and on the way there and back.
	Paused *Standstill `json:"paused,omitempty"`
	// Certificate is of the last time that it went on from memory.
	Certificate *Certificate `json:"certificate,omitempty"`
	// End is set from the moment the VM is claimed for destruction.
	End       *Reason   `json:"end,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	// Revision of the commit that wrote the row, set by the state owner.
	Revision uint64 `json:"revision"`
}

// BootMode is how a VM came up.
type BootMode string

// Boot modes.
const (
	BootCold   BootMode = "cold"
	BootGolden BootMode = "golden"
	BootSeed   BootMode = "seed"
)

// BootRecord is how and how fast a VM came up; Steps are in order.
type BootRecord struct {
	Mode  BootMode   `json:"mode,omitempty"`
	Steps []StepTime `json:"steps,omitempty"`
}

// StepTime is one named step of a create and the time it took.
type StepTime struct {
	Step string        `json:"step"`
	Took time.Duration `json:"took"`
}

// Life is what is kept of an environment after its end: enough to explain it.
type Life struct {
	UID       string    `json:"uid"`
	VMID      string    `json:"vm_id"`
	TaskID    string    `json:"task_id"`
	HostID    string    `json:"host_id,omitempty"`
	Owner     string    `json:"owner"`
	State     VMState   `json:"state"` // destroyed or failed
	Reason    Reason    `json:"reason"`
	Error     string    `json:"error,omitempty"`
	Spec      Spec      `json:"spec"`
	CreatedAt time.Time `json:"created_at"`
	EndedAt   time.Time `json:"ended_at"`
	// EndedSeq is the sequence number of the terminal event.
	EndedSeq uint64 `json:"ended_seq"`
}

// LifeRetention is how long an ended life stays readable by its VM id and how
// long a repeated DELETE answers success.
const LifeRetention = 24 * time.Hour

// StartupLog is the output of a life's startup script, kept apart from the
// row because it is large (bounded by MaxStartupLog).
type StartupLog struct {
	UID       string    `json:"uid"`
	ExitCode  int       `json:"exit_code"`
	TimedOut  bool      `json:"timed_out,omitempty"`
	Truncated bool      `json:"truncated,omitempty"`
	Output    []byte    `json:"output"` // stdout and stderr as they came
	EndedAt   time.Time `json:"ended_at"`
}

// MaxStartupLog is the most bytes kept of a startup script's output: its end.
const MaxStartupLog = 256 << 10

// TaskRunStatus is the state of a task assignment.
type TaskRunStatus string

// Task states.
const (
	TaskRunAssigned  TaskRunStatus = "assigned"
	TaskRunRunning   TaskRunStatus = "running"
	TaskRunCompleted TaskRunStatus = "completed"
	TaskRunFailed    TaskRunStatus = "failed"
)

// Done reports whether the task reached an end.
func (s TaskRunStatus) Done() bool { return s == TaskRunCompleted || s == TaskRunFailed }

// Task is the assignment of a caller's task to one life of a VM.
type Task struct {
	TaskID     string        `json:"task_id"`
	VMID       string        `json:"vm_id"`
	UID        string        `json:"uid"`
	RunStatus  TaskRunStatus `json:"run_status"`
	RetryCount int           `json:"retry_count"`
	LastError  string        `json:"last_error,omitempty"`
	AssignedAt time.Time     `json:"assigned_at"`
	UpdatedAt  time.Time     `json:"updated_at"`
}
