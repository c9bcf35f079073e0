// Package ops is what the host agent's operations are made of: flights that go
// on when their callers leave, what is kept of those that landed, and slots.
package ops

import (
	"context"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Flight is an operation under way that ends with an answer A. It goes on
// without those who wait for it.
type Flight[A any] struct {
	done chan struct{}
	// Valid once done is closed.
	ans A
	err error

	mu      sync.Mutex
	steps   []stepMark
	changed chan struct{} // closed and replaced when a step begins
}

type stepMark struct {
	name string
	at   time.Time
}

// NewFlight begins one.
func NewFlight[A any]() *Flight[A] {
	return &Flight[A]{done: make(chan struct{}), changed: make(chan struct{})}
}

// Land ends the flight; it is called once.
func (f *Flight[A]) Land(ans A, err error) {
	f.ans, f.err = ans, err
	close(f.done)
}

// Step says that a named step begins.
func (f *Flight[A]) Step(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.steps = append(f.steps, stepMark{name, time.Now()})
	close(f.changed)
	f.changed = make(chan struct{})
}

// stepsFrom returns the steps after the first n, and a channel that closes
// when another begins.
func (f *Flight[A]) stepsFrom(n int) ([]stepMark, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.steps[n:len(f.steps):len(f.steps)], f.changed
}

// Times turns the steps into durations, the last one ending at end.
func (f *Flight[A]) Times(end time.Time) []fleet.StepTime {
	steps, _ := f.stepsFrom(0)
	out := make([]fleet.StepTime, len(steps))
	for i, s := range steps {
		next := end
		if i+1 < len(steps) {
			next = steps[i+1].at
		}
		out[i] = fleet.StepTime{Step: s.name, Took: next.Sub(s.at)}
	}
	return out
}

// Wait returns the outcome, or the caller's own end: the flight goes on.
// report, if not nil, is called with each step in order.
func (f *Flight[A]) Wait(ctx context.Context, report func(string) error) (A, error) {
	var none A
	for seen := 0; ; {
		steps, changed := f.stepsFrom(seen)
		seen += len(steps)
		for _, s := range steps {
			if report == nil {
				break
			}
			if err := report(s.name); err != nil {
				return none, err
			}
		}
		if len(steps) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-f.done:
			if more, _ := f.stepsFrom(seen); len(more) > 0 && report != nil {
				continue
			}
			return f.ans, f.err
		case <-ctx.Done():
			return none, context.Cause(ctx)
		}
	}
}
