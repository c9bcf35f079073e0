package provider

import (
	"context"

	"github.com/fusevm/fuse/internal/fleet"
)

// Publisher is implemented by environments whose ports can be reached (seed:
// EndpointReporter).
type Publisher interface {
	// Publish makes exactly these ports reachable at the host and returns them
	// in this order as they are. A repeat changes nothing; a port that stays
	// keeps its number at the host.
	Publish(ctx context.Context, expose []fleet.ExposeSpec) ([]fleet.Endpoint, error)
	// Dial connects to a TCP port of the guest through the host. ctx ends the
	// connection.
	Dial(ctx context.Context, port int) (PortConn, error)
}

// PortConn is a connection to a port of a guest. A Read that returns io.EOF says
// that the guest has ended its direction; CloseWrite ends the other. Read and
// Write may be called at once, each by one caller.
type PortConn interface {
	Read(p []byte) (int, error)
	Write(p []byte) (int, error)
	CloseWrite() error
	Close() error
}

// Publish is an environment's Publish. One that cannot is asked for nothing
// without harm.
func Publish(ctx context.Context, env Environment, expose []fleet.ExposeSpec) ([]fleet.Endpoint, error) {
	p, ok := env.(Publisher)
	switch {
	case ok:
		return p.Publish(ctx, expose)
	case len(expose) == 0:
		return nil, nil
	}
	return nil, fleet.Errorf(fleet.CodeUnimplemented, "the host of environment %s publishes no ports", env.Name()).
		With(fleet.DetailScope, "expose").With(fleet.DetailRemedy, "leave it out, or choose another host")
}
