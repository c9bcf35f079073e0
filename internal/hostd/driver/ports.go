package driver

import (
	"context"
	"net"

	"github.com/fusevm/fuse/internal/fleet"
)

// Port is a port of a guest that its host publishes. Host is its number at the
// host; zero lets the host choose.
type Port struct {
	Guest    int            `json:"guest"`
	Protocol fleet.Protocol `json:"protocol"` // tcp or udp
	Host     int            `json:"host"`
}

// Publisher is an Instance whose guest's ports can be reached.
type Publisher interface {
	// Publish makes exactly these ports reachable at the host and returns them
	// in this order with their numbers there. It is durable before it holds, so
	// that whoever adopts the VM finds it; on error all is as it was. The core
	// never calls it twice at once for one VM.
	Publish(ctx context.Context, want []Port) ([]Port, error)
	// Dial connects to a TCP port of the guest. A connection can be closed for
	// writing alone.
	Dial(ctx context.Context, port int) (net.Conn, error)
}
