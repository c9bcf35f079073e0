package api

import (
	"context"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// Store is what the edge reads of the state owner.
type Store interface {
	View(fn func(*state.ReadTx) error) error
	Events(ctx context.Context, q state.EventQuery) ([]fleet.Event, error)
	StartupLog(ctx context.Context, uid string) (fleet.StartupLog, bool, error)
}

// Environments are the lifecycle verbs.
type Environments interface {
	Create(ctx context.Context, req lifecycle.CreateRequest) (*fleet.VM, error)
	CreateAsync(ctx context.Context, req lifecycle.CreateRequest) (*fleet.VM, error)
	Destroy(ctx context.Context, id string, reason fleet.Reason) error
	Drain(ctx context.Context, id, actor string) (*fleet.VM, error)
	Complete(ctx context.Context, ref, actor, evidence string) (*fleet.VM, error)
}

// Guests run commands in environments.
type Guests interface {
	Exec(ctx context.Context, id string, req guestops.ExecRequest) (provider.ExecResult, error)
}

// Hosts are the host verbs.
type Hosts interface {
	Register(ctx context.Context, req hosts.RegisterRequest) (fleet.Host, error)
	Remove(ctx context.Context, id, actor string) error
	Cordon(ctx context.Context, id, actor string) error
	Uncordon(ctx context.Context, id, actor string) error
	Sighting(id string) hosts.Sighting
}

// Awaiter waits for the create in flight on a life; ok is false when there is
// none.
type Awaiter interface {
	Await(ctx context.Context, uid string) (vm *fleet.VM, ok bool, err error)
}

// Metrics takes the figures of the edge. Creates are not the edge's to count:
// they outlive their request.
type Metrics interface {
	OperationCompleted(op string, took time.Duration, err error)
	RequestStarted() (done func(route, method string, code int, took time.Duration))
}

// Check is one condition of readiness. Run must answer at once, whatever the
// size of the fleet.
type Check struct {
	Name string
	Run  func(context.Context) error
	// Note, if set, is what to show in place of "ok"; "": nothing to note.
	Note func() string
}
