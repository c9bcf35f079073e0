package supervise

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/fusevm/fuse/internal/services"
)

// graph is the services of one manifest.
type graph struct {
	cfg    Config
	number func(name string) int // of a service's next process
	units  []*unit               // in the order of their starts
	byName map[string]*unit
	ctx    context.Context
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu    sync.Mutex
	moved chan struct{} // closed and replaced with every change of a unit
}

func newGraph(ctx context.Context, s *Supervisor, list []services.Service) *graph {
	g := &graph{cfg: s.cfg, number: s.number, byName: map[string]*unit{}, moved: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancel(ctx)
	for _, one := range list {
		u := newUnit(g, one)
		g.units = append(g.units, u)
		g.byName[one.Name] = u
	}
	return g
}

func (g *graph) start() {
	for _, u := range g.units {
		g.wait.Go(u.run)
	}
}

// tell wakes those that wait for a unit to change.
func (g *graph) tell() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.moved)
	g.moved = make(chan struct{})
}

func (g *graph) change() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.moved
}

// stop ends the services one after another, each before what it depends on,
// and returns when none runs. What cannot be ended does not keep the rest up.
func (g *graph) stop(ctx context.Context) error {
	for _, u := range g.units {
		u.close()
	}
	var errs []error
	for _, u := range slices.Backward(g.units) {
		errs = append(errs, u.stop(ctx))
	}
	return errors.Join(errs...)
}
