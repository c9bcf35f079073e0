package sshx

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/playguard/observe"
)

// Limits of a Pool.
const (
	// dialsPerHost is how many connections to one address are being made at a
	// time: sshd begins to refuse at random above ten that are not logged in.
	dialsPerHost = 4
	// IdleAfter is how long an unused connection is kept: longer than the time
	// between two looks, so that a look costs no login.
	IdleAfter = 3 * time.Minute
)

// Pool keeps at most one connection to each marquee that new work begins on.
// One that is replaced or let go drains: what is under way on it ends in its
// own time.
type Pool struct {
	limits Timeouts

	mu     sync.Mutex
	closed bool
	links  map[string]*link
	gates  map[string]*gate
	old    map[*Conn]bool // being drained
	goes   sync.WaitGroup
}

// link is the way to one marquee.
type link struct {
	dialing chan struct{} // closed when the dial under way ends; nil if none is
	conn    *Conn
	to      Target
	err     error // of the last dial
	idle    *time.Timer
	used    time.Time // when it was last asked for
}

// gate bounds the dials to one address.
type gate struct {
	slots chan struct{}
	users int
}

// NewPool returns an empty pool. Zero limits take the defaults.
func NewPool(limits Timeouts) *Pool {
	return &Pool{limits: limits, links: map[string]*link{}, gates: map[string]*gate{}, old: map[*Conn]bool{}}
}

// Conn returns the connection of a marquee, and makes it where there is none,
// or where it is another's target by now. Callers that come while it is being
// made wait for the same one.
func (p *Pool) Conn(ctx context.Context, marquee string, to Target) (*Conn, error) {
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, &Error{Ending: observe.EndedDial, Op: "connect to " + to.Address, Err: errClosed}
		}
		l := p.links[marquee]
		if l == nil {
			l = &link{}
			p.links[marquee] = l
		}
		if l.dialing == nil {
			if l.conn != nil && l.conn.Usable() && l.to.equal(to) {
				l.used = time.Now()
				l.idle.Reset(IdleAfter)
				p.mu.Unlock()
				return l.conn, nil
			}
			p.letGo(l)
			l.dialing, l.to = make(chan struct{}), to
			p.mu.Unlock()
			return p.dial(ctx, marquee, l)
		}
		wait := l.dialing
		p.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, &Error{Ending: observe.EndedDeadline, Op: "connect to " + to.Address, Err: context.Cause(ctx)}
		}
		p.mu.Lock()
		err := l.err
		p.mu.Unlock()
		if err != nil { // not one more try for each that waited
			return nil, err
		}
	}
}

// dial makes the connection of a link; no lock is held meanwhile.
func (p *Pool) dial(ctx context.Context, marquee string, l *link) (*Conn, error) {
	first := l.to.Address
	if len(l.to.Jumps) > 0 {
		first = l.to.Jumps[0].Address
	}
	var conn *Conn
	leave, err := p.enter(ctx, first)
	if err == nil {
		conn, err = Dial(ctx, l.to, p.limits)
		leave()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.err = err; ctx.Err() != nil {
		l.err = nil // this caller gave up; those that wait try themselves
	}
	close(l.dialing)
	l.dialing = nil
	if err != nil {
		return nil, err
	}
	if p.closed || p.links[marquee] != l { // let go while it was made
		p.drain(conn)
		return nil, &Error{Ending: observe.EndedDial, Op: "connect to " + l.to.Address, Err: errRetired}
	}
	l.conn, l.used = conn, time.Now()
	l.idle = time.AfterFunc(IdleAfter, func() { p.expire(marquee, conn) })
	return conn, nil
}

// enter waits for a turn at an address.
func (p *Pool) enter(ctx context.Context, address string) (func(), error) {
	p.mu.Lock()
	g := p.gates[address]
	if g == nil {
		g = &gate{slots: make(chan struct{}, dialsPerHost)}
		p.gates[address] = g
	}
	g.users++
	p.mu.Unlock()
	leave := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if g.users--; g.users == 0 {
			delete(p.gates, address)
		}
	}
	select {
	case g.slots <- struct{}{}:
		return func() { <-g.slots; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, &Error{Ending: observe.EndedDeadline, Op: "wait for a turn to connect to " + address, Err: context.Cause(ctx)}
	}
}

// expire retires a connection that nobody has asked for in a while: somebody may
// have since the timer fired. One with work on it ends after that.
func (p *Pool) expire(marquee string, conn *Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.links[marquee]; l != nil && l.conn == conn && l.dialing == nil && time.Since(l.used) >= IdleAfter {
		p.letGo(l)
		delete(p.links, marquee)
	}
}

// letGo retires the connection of a link. The lock is held.
func (p *Pool) letGo(l *link) {
	if l.conn == nil {
		return
	}
	l.idle.Stop()
	p.drain(l.conn)
	l.conn, l.idle = nil, nil
}

// drain retires a connection and forgets it once it has ended. The lock is
// held.
func (p *Pool) drain(conn *Conn) {
	p.old[conn] = true
	conn.Retire()
	p.goes.Go(func() {
		<-conn.Done()
		conn.Close() // waits for its goroutines
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.old, conn)
	})
}

// Drop retires the connection of a marquee, if there is one: after its target
// has changed, or when it is not used any more.
func (p *Pool) Drop(marquee string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.links[marquee]; l != nil {
		p.letGo(l)
		delete(p.links, marquee)
	}
}

// Open counts the connections: those for new work, and those that drain.
func (p *Pool) Open() (live, draining int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		if l.conn != nil && l.conn.Usable() {
			live++
		}
	}
	return live, len(p.old)
}

// Close ends every connection at once and waits for them.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	for marquee, l := range p.links {
		p.letGo(l)
		delete(p.links, marquee)
	}
	old := make([]*Conn, 0, len(p.old))
	for c := range p.old {
		old = append(old, c)
	}
	p.mu.Unlock()
	for _, c := range old {
		c.end(errClosed)
	}
	p.goes.Wait()
}

// equal reports whether two targets are the same way with the same keys.
func (t Target) equal(o Target) bool {
	return t.Address == o.Address && t.User == o.User && t.HostKey == o.HostKey && t.Agent == o.Agent &&
		slices.EqualFunc(t.Keys, o.Keys, bytes.Equal) && slices.EqualFunc(t.Jumps, o.Jumps, Target.equal)
}
