package sshx

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// MaxSessions is how many sessions one connection carries at a time; sshd
// allows 10 unless told otherwise, and is not asked for all of them.
const MaxSessions = 4

// MaxStreams is how many of them people's commands may hold, so that there is
// always room for a look.
const MaxStreams = 2

// Conn is a connection to one host. It is safe for concurrent use.
type Conn struct {
	address string
	limits  Timeouts
	client  *ssh.Client
	hops    []*ssh.Client // client is the last of them
	slots   chan struct{} // one entry for each session
	streams chan struct{} // one entry for each that is a person's

	closing sync.Once
	done    chan struct{}  // closed when nothing may begin or go on
	why     error          // set before done is closed
	goes    sync.WaitGroup // every goroutine that works for it

	mu      sync.Mutex
	retired bool
	open    int
	overdue int // of those, sessions that the host does not open
}

func newConn(hops []*ssh.Client, address string, limits Timeouts) *Conn {
	c := &Conn{
		address: address, limits: limits, hops: hops, client: hops[len(hops)-1],
		slots: make(chan struct{}, MaxSessions), streams: make(chan struct{}, MaxStreams), done: make(chan struct{}),
	}
	c.goes.Go(c.watch)
	return c
}

// Done is closed when the connection is of no use any more.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Close ends the connection and everything on it at once, and waits for its
// goroutines.
func (c *Conn) Close() {
	c.end(errClosed)
	c.goes.Wait()
}

// Retire lets sessions under way finish, allows no new ones, and closes the
// connection after the last.
func (c *Conn) Retire() {
	c.mu.Lock()
	c.retired = true
	idle := c.open == 0
	c.mu.Unlock()
	if idle {
		c.end(errRetired)
	}
}

func (c *Conn) end(why error) {
	c.closing.Do(func() {
		c.why = why
		close(c.done)
		// Closing a later hop first could block on a dead way to it; the first
		// is what all of them stand on.
		c.hops[0].Close() //nolint:errcheck // it is given up
	})
}

// watch asks for life and ends the connection when none is left. A refusal of
// the question is an answer too; only silence and errors count.
func (c *Conn) watch() {
	dead := make(chan struct{})
	c.goes.Go(func() {
		c.client.Wait() //nolint:errcheck // the end is all that matters
		close(dead)
	})
	alive := make(chan struct{}, 1)
	ticker := time.NewTicker(c.limits.KeepAlive)
	defer ticker.Stop()
	silent := time.NewTimer(keepAliveMisses * c.limits.KeepAlive)
	defer silent.Stop()
	waiting := false
	for {
		select {
		case <-c.done:
			return
		case <-dead:
			c.end(io.ErrUnexpectedEOF)
			return
		case <-silent.C:
			c.end(errSilent)
			return
		case <-alive:
			waiting = false
			silent.Reset(keepAliveMisses * c.limits.KeepAlive)
		case <-ticker.C:
			if waiting {
				continue
			}
			waiting = true
			c.goes.Go(func() {
				if _, _, err := c.client.SendRequest("keepalive@openssh.com", true, nil); err == nil {
					alive <- struct{}{}
				}
			})
		}
	}
}

// Usable reports whether something new may begin on the connection.
func (c *Conn) Usable() bool {
	if c.over() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.retired
}

func (c *Conn) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// take waits for a free session; a stream does not wait for another to end.
// The returned function gives it back.
func (c *Conn) take(ctx context.Context, stream bool) (func(), error) {
	if !stream {
		return c.slot(ctx)
	}
	select {
	case c.streams <- struct{}{}:
	default:
		return nil, fleet.Errorf(fleet.CodeUnavailable, "%d logs and commands of people are open on %s already", MaxStreams, c.address).
			With(fleet.DetailLimit, fmt.Sprint(MaxStreams)).With(fleet.DetailRemedy, "end one of them, or come back later")
	}
	giveBack, err := c.slot(ctx)
	if err != nil {
		<-c.streams
		return nil, err
	}
	return func() {
		<-c.streams
		giveBack()
	}, nil
}

func (c *Conn) slot(ctx context.Context) (func(), error) {
	select {
	case c.slots <- struct{}{}:
	case <-c.done:
		return nil, c.lost("wait for a session")
	case <-ctx.Done():
		return nil, &Error{Ending: observe.EndedDeadline, Op: "wait for a session on " + c.address, Err: context.Cause(ctx)}
	}
	c.mu.Lock()
	retired := c.retired
	if !retired {
		c.open++
	}
	c.mu.Unlock()
	if retired {
		<-c.slots
		return nil, &Error{Ending: observe.EndedSession, Op: "open a session on " + c.address, Err: errRetired}
	}
	return func() {
		c.mu.Lock()
		c.open--
		last := c.retired && c.open == c.overdue
		c.mu.Unlock()
		<-c.slots
		if last {
			c.end(errRetired)
		}
	}, nil
}

// opening watches a session that is being opened. A host that answers keepalives
// and opens none is of no use for new work: that gets another connection, and this
// one ends with what goes on over it.
func (c *Conn) opening() (opened func()) {
	timer := time.AfterFunc(max(c.limits.Session, keepAliveMisses*c.limits.KeepAlive), func() {
		c.mu.Lock()
		c.overdue++
		c.retired = true
		idle := c.open == c.overdue
		c.mu.Unlock()
		if idle {
			c.end(errDeadline)
		}
	})
	return func() {
		if timer.Stop() {
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.overdue--
	}
}

// lost is the error of something that the end of the connection cut short.
func (c *Conn) lost(op string) error {
	ending := observe.EndedWithout
	switch {
	case errors.Is(c.why, errSilent), errors.Is(c.why, errDeadline):
		ending = observe.EndedDeadline
	case errors.Is(c.why, errRetired): // after the last session: what would begin comes too late
		ending = observe.EndedSession
	}
	return &Error{Ending: ending, Op: op + " on " + c.address, Err: c.why}
}
