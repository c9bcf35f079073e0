// Package feed holds the routes of what happened: the events of the fleet, as
// a page or as a stream, the states of one environment as a stream, and its life
// in words.
package feed

import (
	"context"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// Store is what the routes read of the state owner.
type Store interface {
	Watcher
	View(fn func(*state.ReadTx) error) error
	Events(ctx context.Context, q state.EventQuery) ([]fleet.Event, error)
	StartupLog(ctx context.Context, uid string) (fleet.StartupLog, bool, error)
}

// Watcher subscribes to what is committed, of the fleet or of one environment.
type Watcher interface {
	Watch(ctx context.Context) *state.Subscription
	ViewAndWatch(ctx context.Context, fn func(*state.ReadTx) error) (*state.Subscription, error)
	WatchVM(ctx context.Context, vmID string) *state.Subscription
	ViewAndWatchVM(ctx context.Context, vmID string, fn func(*state.ReadTx) error) (*state.Subscription, error)
}

// Metrics takes the figures of streams.
type Metrics interface {
	StreamOpened() (closed func())
	StreamLagged()
	EventDelivered(took time.Duration)
}

// Config wires the routes. All but the limits are needed.
type Config struct {
	Store   Store
	Streams *web.Streams
	Metrics Metrics
	// Sight says what is known of a host now.
	Sight func(hostID string) events.Sight
	// MaxRuntime and IdleTimeout hold for environments that name none; zero is
	// no limit.
	MaxRuntime, IdleTimeout time.Duration
}

type routes struct {
	Config
	recent *frames
}

// Routes are the routes of events and histories.
func Routes(cfg Config) []web.Route {
	s := routes{cfg, &frames{}}
	return []web.Route{
		{Method: http.MethodGet, Pattern: "/v1/events", Slow: true, Handle: s.events},
		{Method: http.MethodGet, Pattern: "/v1/environments/{id}/events", Slow: true, Handle: s.streamEvents},
		{Method: http.MethodGet, Pattern: "/v1/environments/{id}/history", Handle: s.history},
	}
}
