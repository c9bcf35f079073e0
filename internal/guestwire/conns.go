package guestwire

import (
	"errors"
	"net"
	"sync"
)

// connSet keeps the open connections of a client, so that closing the client
// closes them whatever its calls are doing.
type connSet struct {
	mu     sync.Mutex
	closed bool
	open   map[net.Conn]struct{}
}

// add takes conn into the set until it is closed.
func (s *connSet) add(conn net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	if s.open == nil {
		s.open = map[net.Conn]struct{}{}
	}
	s.open[conn] = struct{}{}
	return &setConn{Conn: conn, set: s}, nil
}

func (s *connSet) close() error {
	s.mu.Lock()
	conns := s.open
	s.open, s.closed = nil, true
	s.mu.Unlock()
	var errs []error
	for c := range conns {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

type setConn struct {
	net.Conn
	set *connSet
}

func (c *setConn) Close() error {
	c.set.mu.Lock()
	delete(c.set.open, c.Conn)
	c.set.mu.Unlock()
	return c.Conn.Close()
}
