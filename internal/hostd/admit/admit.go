// Package admit lets work begin that takes much of a host's memory for a while:
// captures of machines that run, a few at a time, and the loading of memory that
// was captured. None begins for which the host has no memory to spare beside what
// machines and others of its kind were promised.
package admit

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/guestmem"
)

// AtOnce is how many captures of memory a host makes at a time: each copies a
// guest's memory and reads it twice more.
const AtOnce = 4

// Reserve is what stays free of the memory that the kernel calls available, in
// bytes: for it, for this program and for what machines take unforeseen.
const Reserve = 256 << 20

// Config of a Gate.
type Config struct {
	Holder driver.MemoryHolder
	// Making is what was promised to machines that do not have it yet, in bytes.
	Making func() int64
	// Available is what the host can give, in bytes; nil reads it of the kernel.
	Available func() (int64, error)
	Log       *slog.Logger
}

// Gate admits the work of one host. One that is nil admits everything.
type Gate struct {
	cfg  Config
	line chan struct{} // the first who waits for a turn has it

	checking sync.Mutex // one promise is made at a time; above mu

	mu      sync.Mutex
	inside  int              // captures
	taken   int64            // bytes that work under way may take
	loading map[string]*load // by id of a capture
	left    chan struct{}    // closed when somebody leaves
	seeds   int64
}

// load is the memory of one capture that is being loaded, once for all who want it.
type load struct {
	users    int
	promised bool  // to all of them, until the last leaves
	bytes    int64 // that were
}

// New makes a gate.
func New(cfg Config) *Gate {
	if cfg.Available == nil {
		cfg.Available = guestmem.Available
	}
	return &Gate{cfg: cfg, line: make(chan struct{}, 1), loading: map[string]*load{}, left: make(chan struct{})}
}

// Capture waits for a turn and for memory to capture that of a running machine.
// It refuses as soon as no other work could give back what is missing.
func (g *Gate) Capture(ctx context.Context, vm driver.VM) (leave func(), err error) {
	if g == nil || vm.HugePages { // the latter is refused by what captures
		return func() {}, nil
	}
	need, err := g.cfg.Holder.Needs(ctx, vm)
	if err != nil {
		return nil, fmt.Errorf("what a capture takes of the host's memory: %w", err)
	}
	select {
	case g.line <- struct{}{}:
		defer func() { <-g.line }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	for {
		g.mu.Lock()
		turn, left := g.inside < AtOnce, g.left
		if turn {
			g.inside++
		}
		g.mu.Unlock()
		if turn {
			alone, err := g.promise(need)
			if err == nil {
				return g.leaving(need, true), nil
			}
			g.mu.Lock()
			g.inside-- // nobody else in line looks at it
			g.mu.Unlock()
			if alone {
				return nil, err
			}
		}
		select {
		case <-left:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Load admits the loading of a capture's memory of so many bytes, unless that is
// in RAM already.
func (g *Gate) Load(ctx context.Context, id string, bytes int64) (leave func(), err error) {
	if g == nil {
		return func() {}, nil
	}
	held, err := g.cfg.Holder.Held(ctx)
	if err != nil {
		return nil, err
	}
	if _, ok := held[id]; ok {
		return func() {}, nil
	}
	g.mu.Lock()
	l := g.loading[id]
	if l == nil {
		l = &load{}
		g.loading[id] = l
	}
	l.users++
	g.mu.Unlock()
	leave = sync.OnceFunc(func() { g.leaveLoad(id, l) })
	for {
		g.mu.Lock()
		left := g.left
		g.mu.Unlock()
		alone, err := g.promiseLoad(l, bytes)
		if err == nil {
			return leave, nil
		}
		if alone {
			leave()
			return nil, err
		}
		select {
		case <-left:
		case <-ctx.Done():
			leave()
			return nil, context.Cause(ctx)
		}
	}
}

// promiseLoad makes the one promise of a load, unless it was made to another who
// wants the same.
func (g *Gate) promiseLoad(l *load, bytes int64) (alone bool, err error) {
	g.checking.Lock()
	defer g.checking.Unlock()
	if l.promised {
		return false, nil
	}
	if alone, err = g.promiseLocked(bytes); err == nil {
		l.promised, l.bytes = true, bytes
		g.free(0, false) // whoever waits for the same has it too
	}
	return alone, err
}

func (g *Gate) leaveLoad(id string, l *load) {
	g.checking.Lock()
	defer g.checking.Unlock()
	g.mu.Lock()
	l.users--
	last := l.users == 0
	if last {
		delete(g.loading, id)
	}
	g.mu.Unlock()
	if last && l.promised {
		g.free(l.bytes, false)
	}
}

// promise counts memory as taken and then looks whether it is there, so that who
// admits a machine meanwhile sees it. alone: nobody else has any to give back.
func (g *Gate) promise(need int64) (alone bool, err error) {
	g.checking.Lock()
	defer g.checking.Unlock()
	return g.promiseLocked(need)
}

func (g *Gate) promiseLocked(need int64) (alone bool, err error) {
	g.mu.Lock()
	others := g.taken
	g.taken += need
	g.mu.Unlock()
	making := int64(0)
	if g.cfg.Making != nil {
		making = g.cfg.Making()
	}
	if err = g.fits(need, others+making); err != nil {
		g.mu.Lock()
		g.taken -= need
		g.mu.Unlock()
	}
	return others == 0, err
}

// fits refuses what the host does not have beside what is spoken for.
func (g *Gate) fits(need, spoken int64) error {
	available, err := g.cfg.Available()
	if err != nil {
		return fmt.Errorf("the host's memory: %w", err)
	}
	spare := max(available-Reserve-spoken, 0)
	if need <= spare {
		return nil
	}
	return fleet.Errorf(fleet.CodeUnavailable, "%w: the memory of this host does not suffice", fleet.ErrNoCapacity).
		With(fleet.DetailScope, "memory").
		With(fleet.DetailLimit, mib(spare)+" MiB to spare").
		With(fleet.DetailUsage, fmt.Sprintf("%s MiB asked for; of %s MiB that are available %s are kept free and %s promised to others", mib(need), mib(available), mib(Reserve), mib(spoken))).
		With(fleet.DetailRemedy, "destroy environments or snapshots on this host, or end what else takes its memory, and try again; a snapshot of the disk takes none")
}

func mib(n int64) string { return strconv.FormatInt(n>>20, 10) }

func (g *Gate) leaving(need int64, capture bool) func() {
	return sync.OnceFunc(func() { g.free(need, capture) })
}

// free gives memory back, and a turn, and lets those who wait look again.
func (g *Gate) free(need int64, turn bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.taken -= need
	if turn {
		g.inside--
	}
	close(g.left)
	g.left = make(chan struct{})
}

// Beside refuses a machine of that memory if work under way may take it. making
// is Config.Making's; it is asked only if there is such work.
func (g *Gate) Beside(vm driver.VM, overheadMB int, making func() int64) error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	taken := g.taken
	g.mu.Unlock()
	if taken == 0 || vm.HugePages {
		return nil
	}
	return g.fits(int64(max(vm.RamMB, 0)+overheadMB)<<20, taken+making())
}

// Note looks at the memory of captures that exist in RAM alone: it is as much in
// use as that of a machine.
func (g *Gate) Note(ctx context.Context, volatile []string) {
	if g == nil {
		return
	}
	held, err := g.cfg.Holder.Held(ctx)
	if err != nil {
		g.cfg.Log.Warn("memory of snapshots not looked at", "error", err)
		return
	}
	var seeds int64
	for _, id := range volatile {
		seeds += held[id]
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seeds = seeds
}

// Seeds is what captures in RAM alone take of the host.
func (g *Gate) Seeds() fleet.HostCapacity {
	if g == nil {
		return fleet.HostCapacity{}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return fleet.HostCapacity{RamMB: int((g.seeds + 1<<20 - 1) >> 20)}
}
