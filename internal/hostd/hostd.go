// Package hostd is the core of the host agent: one per host, it makes, finds
// again and removes that host's VMs through a driver, and answers a control
// plane over hostwire.
//
// What it promises: no call acts without the fence of the fleet's current
// term; the owner of a VM is on disk before anything else of it is made; an
// operation that is repeated gets its first answer; a VM goes on when this
// process dies and is found again when it comes back; nothing of other fleets
// or of unknown origin is ever touched. docs/design/host-agent.md tells how.
package hostd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/diskspace"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/admit"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/golden"
	"github.com/fusevm/fuse/internal/hostd/health"
	"github.com/fusevm/fuse/internal/hostd/hostmetrics"
	"github.com/fusevm/fuse/internal/hostd/identity"
	"github.com/fusevm/fuse/internal/hostd/journal"
	"github.com/fusevm/fuse/internal/hostd/kept"
	"github.com/fusevm/fuse/internal/hostd/probe"
	"github.com/fusevm/fuse/internal/hostd/refusal"
	"github.com/fusevm/fuse/internal/hostd/snaprpc"
	"github.com/fusevm/fuse/internal/keylock"
	"github.com/fusevm/fuse/internal/tracing"
)

// Config is what a Host is made of. Dir, Driver and Token are needed.
type Config struct {
	// Dir is the host agent's data directory; one agent at a time holds it.
	Dir    string
	Driver driver.Driver
	// Token is the bearer token of every call, at least MinToken bytes.
	Token string
	// Version is this program's, for people.
	Version string
	Logger  *slog.Logger
	Tracer  *tracing.Tracer // of calls; nil makes no traces
	// Capacity is what the host takes in all. Zero fields come from the
	// driver's facts; CPUs are shared freely unless set here.
	Capacity fleet.HostCapacity
	// Services are served beside the host's own.
	Services    []Service
	PortAddress string // as portrpc.Config.Address
	// CPUOvercommit is how many times over the CPUs are handed out; zero is once.
	CPUOvercommit float64
	// GoldenDisk and GoldenRAM bound what golden snapshots take, in bytes; none
	// are made without disk. SnapshotRAM is snaprpc.Service.RAM.
	GoldenDisk, GoldenRAM, SnapshotRAM int64

	CreateTimeout time.Duration // of one create; 10 min
	RemoveTimeout time.Duration // of one removal; 2 min
	DrainTimeout  time.Duration // of one drain; 5 min
	SweepEvery    time.Duration // 1 min
	ExitEvery     time.Duration // between looks at who has stopped; 500 ms
	AdoptAtOnce   int           // adoptions at a time; 16
	CloseGrace    time.Duration // for creates and drains under way at Close; 15 s
}

// MinToken is the fewest bytes of a host's bearer token.
const MinToken = 16

// Host is the agent of one host. Make it with New, then call Run once.
type Host struct {
	*creator
	*destroyer
	*guests
	prober *probe.Prober
	keeper *keeper
	health *health.Reader
	core   *core
	lock   *os.File
}

// core is what the parts of a host share.
type core struct {
	cfg      Config
	log      *slog.Logger
	drv      driver.Driver
	reg      *registry
	locks    keylock.Lock // by uid: the driver is never called twice at once for one VM
	ident    identity.Identity
	metrics  *hostmetrics.Metrics
	snaps    *snaprpc.Service
	golden   *golden.Keeper // nil: none
	memory   *admit.Gate    // nil: the driver's captures take none
	consoles *kept.Consoles

	work   sync.WaitGroup // creates, removals and drains under way
	closed chan struct{}  // no new work
}

// New opens DIR: it takes the lock, reads the registry and checks the
// configuration. No VM is touched before Run.
func New(cfg Config) (*Host, error) {
	cfg = cfg.withDefaults()
	if cfg.Driver == nil || cfg.Dir == "" || len(cfg.Token) < MinToken {
		return nil, fleet.Errorf(fleet.CodeInvalidArgument,
			"the host agent needs a data directory, a driver and a token of at least %d bytes", MinToken)
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	cfg.Dir = dir
	if err := os.MkdirAll(filepath.Join(dir, "vms"), 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	lock, err := identity.Lock(dir)
	if err != nil {
		return nil, err
	}
	c := &core{cfg: cfg, log: cfg.Logger, drv: cfg.Driver, closed: make(chan struct{}), consoles: kept.NewConsoles(dir, cfg.Logger)}
	if err := c.open(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	c.metrics = hostmetrics.New(c.reg.phases, func() (free, total int64, err error) { return diskspace.Free(cfg.Dir) })
	facts := probe.New(probe.Config{Driver: c.drv, Identity: c.ident, Version: cfg.Version, Capacity: cfg.Capacity, CPUOvercommit: cfg.CPUOvercommit, NoGolden: cfg.GoldenDisk <= 0, Logger: c.log})
	h := &Host{core: c, prober: facts, lock: lock, destroyer: &destroyer{c}, guests: &guests{c}, health: health.New()}
	h.creator = &creator{core: c, facts: h.prober, kept: c.captured}
	if err := h.openCaptures(); err != nil {
		return nil, errors.Join(err, c.reg.log.Close(), lock.Close())
	}
	h.keeper = &keeper{core: c, prober: h.prober, destroyer: h.destroyer}
	return h, nil
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&c.CreateTimeout, 10*time.Minute)
	def(&c.RemoveTimeout, 2*time.Minute)
	def(&c.DrainTimeout, 5*time.Minute)
	def(&c.SweepEvery, time.Minute)
	def(&c.ExitEvery, 500*time.Millisecond)
	def(&c.CloseGrace, 15*time.Second)
	if c.AdoptAtOnce <= 0 {
		c.AdoptAtOnce = 16
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// open reads identity and log.
func (h *core) open() error {
	ident, err := identity.Load(h.cfg.Dir)
	if err != nil {
		return err
	}
	h.ident = ident
	h.reg = newRegistry(ident.RegistryID)
	j, damaged, err := journal.Open(filepath.Join(h.cfg.Dir, "registry.log"), h.reg.apply)
	if err != nil {
		return err
	}
	j.Snapshot, h.reg.log = h.reg.snapshot, j
	if damaged > 0 {
		h.log.Error("registry log has damaged lines", "lines", damaged)
		h.reg.trustLocked()
	}
	if err := h.reconcileDirs(); err != nil {
		return errors.Join(err, j.Close())
	}
	return nil
}

// Info waits for the first probe, then answers from what is known.
func (h *Host) Info(ctx context.Context) (probe.Info, error) { return h.prober.Info(ctx) }

// RegistryID identifies this host's data directory.
func (h *Host) RegistryID() string { return h.core.ident.RegistryID }

// Run probes the host, takes hold of the VMs that an earlier process left
// running, and then watches and sweeps until ctx ends. VMs go on running.
func (h *Host) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { h.prober.Run(ctx) })
	wg.Go(func() { h.keeper.watchExits(ctx) })
	wg.Go(func() {
		h.keeper.adopt(ctx)
		h.keeper.sweepLoop(ctx)
	})
	wg.Wait()
	return nil
}

// Close refuses new work, waits for what is under way, ends creates and drains
// that take longer than the grace, lets go of the VMs and closes the driver.
// Call it after Run has returned.
func (h *Host) Close() error {
	c := h.core
	c.reg.mu.Lock()
	close(c.closed)
	c.reg.mu.Unlock()
	h.health.Close()

	idle := make(chan struct{})
	go func() { c.work.Wait(); close(idle) }()
	select {
	case <-idle:
	case <-time.After(c.cfg.CloseGrace):
		for _, l := range c.reg.list(func(l *life) bool { return len(l.flights) > 0 }) {
			l.end(refusal.ErrClosing)
		}
		<-idle
	}
	var errs []error
	for _, l := range c.reg.list(func(l *life) bool { return l.inst != nil }) {
		errs = append(errs, l.inst.Close())
	}
	c.golden.Close()
	if c.snaps.Store != nil {
		errs = append(errs, c.snaps.Store.Close())
	}
	errs = append(errs, c.drv.Close(), c.reg.log.Close(), h.lock.Close())
	return errors.Join(errs...)
}

// closedLocked reports whether Close has begun. With the registry's lock held
// across it and the start of new work, Close cannot slip in between.
func (h *core) closedLocked() bool {
	select {
	case <-h.closed:
		return true
	default:
		return false
	}
}
