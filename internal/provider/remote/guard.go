package remote

import (
	"context"
	"net"
)

// guardedConn asks before every write whether this process may still talk to
// the host. A process that was suspended goes on wherever it was, and that may
// be behind every other check.
type guardedConn struct {
	net.Conn
	guard func() error
}

// Write implements net.Conn.
func (c guardedConn) Write(p []byte) (int, error) {
	if err := c.guard(); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

type dialer = func(ctx context.Context, network, addr string) (net.Conn, error)

// guarded dials connections that ask guard.
func guarded(dial dialer, guard func() error) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return guardedConn{conn, guard}, nil
	}
}
