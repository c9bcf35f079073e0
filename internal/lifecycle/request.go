package lifecycle

import (
	"context"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// Admit decides whether an actor may do something to an environment. Every
// verb asks it once, before it has any effect (semantics 11).
type Admit = func(ctx context.Context, actor, verb string, params map[string]string) error

// CreateRequest is what a caller wants. Zero values mean the server's
// defaults; everything is checked before anything happens.
type CreateRequest struct {
	TaskID string // empty: one is made
	Owner  string // the authenticated principal
	Actor  string // who asks, for reasons; empty: the master
	Spec   fleet.Spec
	Boot   fleet.BootOptions
	// Idempotency, if set, is written with the claim, completed with the
	// settle and withdrawn if the create fails. Only its Owner, Key, BodyHash,
	// Method, Path and Status (zero: 201) are read.
	Idempotency *state.Idempotency
	// Fork is set by who forks an environment; nil where a caller asks for one.
	Fork *Fork
	// Progress is told of each step while the caller waits; may be nil. It is
	// called from another goroutine, never after Create has returned.
	Progress func(Progress)
}

// Fork is what a create goes on from, beside the seed of its spec.
type Fork struct {
	Ancestors []string // of the new one, oldest first
	Live      bool     // from the seed's memory, not only its disk
}

// Seed is a snapshot that a create may begin with.
type Seed struct {
	SnapshotID, Digest string
	HostID             string // that has its bytes
}

// Progress is one step that begins (Took is zero) or has ended.
type Progress struct {
	Step string
	// Sub is a step of the host's own within Step; empty for Step itself.
	Sub  string
	Done bool
	Took time.Duration
	// Read is how far the host is with reading the seed, while it is.
	Read *provider.SnapshotProgress
}

// Names of a create's steps, in order.
const (
	StepCredentials   = "credentials"
	StepPlace         = "place"
	StepHostCreate    = "host_create"
	StepProfileFiles  = "profile_files"
	StepCallerFiles   = "caller_files"
	StepExpose        = "expose"
	StepStartupScript = "startup_script"
	StepSettle        = "settle"
)
