package model

import "time"

// Playground is the record of one Compose environment. It never moves to
// another marquee.
type Playground struct {
	ID       PlaygroundID
	Marquee  MarqueeID
	Project  Project
	Player   string
	Revision uint64 // of the store, at its last write

	Intent      Intent
	IntentSince time.Time
	State       State
	StateSince  time.Time
	Reason      string    // why it is in this state, for people
	Attention   Attention // what a person should look at, if anything

	Services    []Service // as the rendered compose file declares them
	Desired     string    // digest of the rendered compose file
	Applied     string    // digest that the last up applied
	KeepVolumes bool      // a destroy leaves the named volumes

	Owed      Action // what a pending or in_progress playground is being made for
	Queued    Queued
	AppliedAt time.Time // last up
	RolledAt  time.Time // last rollout that really began
	Failure   Failure
	Op        Op // in flight; zero if none
	Strikes   Strikes
	Repairs   Tries // repairs by Playguard
	Conflicts Tries // retries after a container name conflict
	Repair    RepairLease
	LastUp    Boot // when it was last seen running
}

// Service is one service of the rendered compose file.
type Service struct {
	Name   string
	Digest string // of its definition; its containers carry it as LabelDigest
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
)

// Queued counts how often a creation job was queued for a pending playground,
// and how often an error was retried.
type Queued struct {
	At    time.Time
	Tries int
}

// OpKind is a mutating operation on a host.
type OpKind string

// Kinds of operations. Only destroy removes volumes.
const (
	OpUp      OpKind = "up"      // plain, detached, never forced
	OpStop    OpKind = "stop"    // containers stop, stay
	OpDown    OpKind = "down"    // containers go, volumes stay
	OpFiles   OpKind = "files"   // directory, marker, compose file; a differing file is set aside
	OpDestroy OpKind = "destroy" // containers, listed volumes, directory
)

// OpKinds lists the kinds of operations.
func OpKinds() []OpKind { return []OpKind{OpUp, OpStop, OpDown, OpFiles, OpDestroy} }

// Op is an operation in flight: it was claimed here before its host was asked.
type Op struct {
	ID      string
	Kind    OpKind
	Started time.Time
	Epoch   uint64 // of the lease it was started under
}

// IsZero reports whether there is none.
func (o Op) IsZero() bool { return o.ID == "" }

// RepairLease announces a repair; no other begins before Until.
type RepairLease struct {
	Reason string
	Until  time.Time
}

// Boot is a life of a host and its daemon. DaemonStart is zero if unknown.
type Boot struct {
	BootID      string
	DaemonStart time.Time // by the host's clock
}

// Equal compares two lives; times by what they tell, not by their zone.
func (b Boot) Equal(o Boot) bool {
	return b.BootID == o.BootID && b.DaemonStart.Equal(o.DaemonStart)
}
