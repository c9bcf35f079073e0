package process

import (
	"context"
	"sync"
)

// gate lets commands start, or holds their starts up: one that was started
// into a frozen cgroup would stand before its exec, and with it this program.
type gate struct {
	mu       sync.Mutex
	shut     chan struct{} // closed when the gate opens; nil while it is open
	starting int
	idle     chan struct{} // closed when no start is under way; nil if nobody waits
}

// enter waits until the gate is open. Each enter needs a leave.
func (g *gate) enter(ctx context.Context) error {
	for {
		g.mu.Lock()
		shut := g.shut
		if shut == nil {
			g.starting++
			g.mu.Unlock()
			return nil
		}
		g.mu.Unlock()
		select {
		case <-shut:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.starting--; g.starting == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// hold shuts the gate and waits for the starts under way.
func (g *gate) hold(ctx context.Context) error {
	g.mu.Lock()
	if g.shut == nil {
		g.shut = make(chan struct{})
	}
	var idle chan struct{}
	if g.starting > 0 {
		if g.idle == nil {
			g.idle = make(chan struct{})
		}
		idle = g.idle
	}
	g.mu.Unlock()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		g.open()
		return context.Cause(ctx)
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

// Hold keeps commands from starting until Let and returns once no start is
// under way. Those that come meanwhile wait.
func (r *Runner) Hold(ctx context.Context) error { return r.gate.hold(ctx) }

// Let lets commands start again.
func (r *Runner) Let() { r.gate.open() }
