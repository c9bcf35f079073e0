package model

import "time"

// Playground is the record of one Compose environment. It never moves to
// another marquee.
type Playground struct {
	ID       PlaygroundID `json:"id"`
	Marquee  MarqueeID    `json:"marquee"`
	Project  Project      `json:"project"`
	Player   string       `json:"player,omitempty"`
	Revision uint64       `json:"revision,omitempty"` // of the store, at its last write

	Intent      Intent    `json:"intent"`
	IntentSince time.Time `json:"intent_since,omitzero"`
	State       State     `json:"state"`
	StateSince  time.Time `json:"state_since,omitzero"`
	Reason      string    `json:"reason,omitempty"`    // why it is in this state, for people
	Attention   Attention `json:"attention,omitempty"` // what a person should look at, if anything

	Services    []Service `json:"services,omitempty"`     // as the rendered compose file declares them
	Desired     string    `json:"desired,omitempty"`      // digest of the rendered compose file
	Applied     string    `json:"applied,omitempty"`      // digest that the last up applied
	KeepVolumes bool      `json:"keep_volumes,omitempty"` // a destroy leaves the named volumes

	Owed      Action      `json:"owed,omitempty"` // what a pending or in_progress playground is being made for
	Queued    Queued      `json:"queued,omitzero"`
	AppliedAt time.Time   `json:"applied_at,omitzero"` // last up
	RolledAt  time.Time   `json:"rolled_at,omitzero"`  // last rollout that really began
	Failure   Failure     `json:"failure,omitzero"`
	Op        Op          `json:"op,omitzero"` // in flight; zero if none
	Strikes   Strikes     `json:"strikes,omitzero"`
	Repairs   Tries       `json:"repairs,omitempty"`   // repairs by Playguard
	Conflicts Tries       `json:"conflicts,omitempty"` // retries after a container name conflict
	Repair    RepairLease `json:"repair,omitzero"`
	LastUp    Boot        `json:"last_up,omitzero"` // when it was last seen running
	Expiry    Expiry      `json:"expiry,omitzero"`
	Trick     *Trick      `json:"trick,omitempty"` // set: it is a job
}

// Service is one service of the rendered compose file.
type Service struct {
	Name   string `json:"name"`
	Digest string `json:"digest,omitempty"` // of its definition; its containers carry it as LabelDigest
	Rolled bool   `json:"rolled,omitempty"` // replaced without a gap: the new container runs before the old one goes
}

// Labels that the renderer puts on every service and volume, and that a look
// selects by. Without them nothing on a host is ours.
const (
	LabelInstallation = "fuse.playguard.installation"
	LabelPlayground   = "fuse.playguard.playground"
	LabelDigest       = "fuse.playguard.digest"  // containers only
	LabelWitness      = "fuse.playguard.witness" // of the witness volume: its random id
)

// Attention is a flag on the record: something that Playguard sees and leaves
// to a person.
type Attention string

// Attentions.
const (
	AttentionStoppedButRuns Attention = "runs_though_stopped"    // stopped on record, something runs, not healthy
	AttentionParked         Attention = "parked_and_not_healthy" // has_changes, and it does not run well
	AttentionRepairsSpent   Attention = "repairs_spent"          // not healthy, and repairs did not help
	AttentionForeign        Attention = "name_used_by_others"    // its project name or directory belongs to somebody else
	AttentionExpired        Attention = "expired_with_work"      // it would be gone, but for work that is nowhere else
	AttentionLeft           Attention = "files_of_another_user"  // it is gone but for files that its SSH user may not remove
)

// Queued counts how often a creation job was queued for a pending playground,
// and how often an error was retried.
type Queued struct {
	At    time.Time `json:"at,omitzero"`
	Tries int       `json:"tries,omitempty"`
}

// OpKind is a mutating operation on a host.
type OpKind string

// Kinds of operations. Only destroy and reclaim remove volumes.
const (
	OpUp      OpKind = "up"      // plain, detached, never forced
	OpStop    OpKind = "stop"    // containers stop, stay
	OpDown    OpKind = "down"    // containers go, volumes stay
	OpFiles   OpKind = "files"   // directory, marker, compose file; a differing file is set aside
	OpDestroy OpKind = "destroy" // containers, listed volumes, directory
	OpReclaim OpKind = "reclaim" // destroy, unless its checkouts hold work
)

// OpKinds lists the kinds of operations.
func OpKinds() []OpKind {
	return []OpKind{OpUp, OpStop, OpDown, OpFiles, OpDestroy, OpReclaim, OpBranch, OpPull, OpAuth, OpMark, OpSweep, OpRestore, OpPurge}
}

// Op is an operation in flight: it was claimed here before its host was asked.
type Op struct {
	ID      string    `json:"id"`
	Kind    OpKind    `json:"kind"`
	Started time.Time `json:"started,omitzero"`
	Epoch   uint64    `json:"epoch,omitempty"` // of the lease it was started under
}

// IsZero reports whether there is none.
func (o Op) IsZero() bool { return o.ID == "" }

// RepairLease announces a repair; no other begins before Until.
type RepairLease struct {
	Reason string    `json:"reason,omitempty"`
	Until  time.Time `json:"until,omitzero"`
}

// Boot is a life of a host and its daemon. DaemonStart is zero if unknown.
type Boot struct {
	BootID      string    `json:"boot_id,omitempty"`
	DaemonStart time.Time `json:"daemon_start,omitzero"` // by the host's clock
}

// Equal compares two lives; times by what they tell, not by their zone.
func (b Boot) Equal(o Boot) bool {
	return b.BootID == o.BootID && b.DaemonStart.Equal(o.DaemonStart)
}
