// Package cutter cuts the connections of tests at random bytes.
package cutter

import (
	"context"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// Cutter hands connections on to a server and cuts each after a random number
// of bytes, counted in both directions, headers too.
type Cutter struct {
	listener net.Listener
	to       string
	most     int64
	cuts     atomic.Int64
	work     sync.WaitGroup
	ctx      context.Context //nolint:containedctx // the test's
}

// New stands before the server at a URL until the test ends. No connection
// carries more than most bytes.
func New(tb testing.TB, to string, most int64) *Cutter {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	u, err := url.Parse(to)
	if err != nil {
		tb.Fatal(err)
	}
	c := &Cutter{listener: l, to: u.Host, most: most, ctx: tb.Context()}
	c.work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.work.Go(func() { c.serve(conn) })
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		c.work.Wait()
	})
	return c
}

// URL is what clients are given in the server's place.
func (c *Cutter) URL() string { return "http://" + c.listener.Addr().String() }

// Cuts is how many connections were cut so far.
func (c *Cutter) Cuts() int64 { return c.cuts.Load() }

func (c *Cutter) serve(conn net.Conn) {
	defer conn.Close()
	var d net.Dialer
	up, err := d.DialContext(c.ctx, "tcp", c.to)
	if err != nil {
		return
	}
	defer up.Close()
	var left atomic.Int64
	left.Store(rand.Int64N(c.most)) // not a secret
	var both sync.WaitGroup
	pass := func(to, from net.Conn) {
		defer func() { _, _ = to.Close(), from.Close() }()
		buf := make([]byte, 16<<10)
		for {
			n, err := from.Read(buf)
			rest := left.Add(-int64(n))
			if rest < 0 {
				n = max(0, n+int(rest)) // the cut is at a byte, not at a piece
			}
			if n > 0 {
				if _, werr := to.Write(buf[:n]); werr != nil {
					return
				}
			}
			if rest < 0 {
				c.cuts.Add(1)
			}
			if err != nil || rest < 0 {
				return
			}
		}
	}
	both.Go(func() { pass(up, conn) })
	both.Go(func() { pass(conn, up) })
	both.Wait()
}
