// Package probe learns what a host is and what it takes, and says from when on
// its listings can be believed.
package probe

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/identity"
	"github.com/fusevm/fuse/internal/hostwire"
)

// defaultVMCount bounds a host whose operator and driver name no limit.
const defaultVMCount = 256

// fresh is how long an answer stands before the driver is asked again, and
// asking how long that may take. The parts that are slow do not change while
// the host is up, and the driver keeps them.
const (
	fresh  = 30 * time.Second
	asking = 5 * time.Second
)

// probeRetry is the pause after a probe that did not work out.
const probeRetry = 15 * time.Second

// Config is what a Prober needs to know of its host.
type Config struct {
	Driver   driver.Driver
	Identity identity.Identity
	Version  string
	// Capacity is what the operator set; zero fields come from the driver.
	Capacity      fleet.HostCapacity
	CPUOvercommit float64 // told as a fact
	NoGolden      bool    // golden snapshots are switched off
	Logger        *slog.Logger
}

// Prober knows what has been learnt since the start: the driver's facts, and
// whether the adoption has ended.
type Prober struct {
	cfg    Config
	probed chan struct{} // closed once facts is set
	held   chan struct{} // closed once adopted is set

	mu      sync.Mutex
	facts   driver.Facts
	at      time.Time // of the last probe; somebody who begins one sets it
	problem string    // why the last probe did not work out
	adopted bool
}

// New makes a prober that has learnt nothing yet.
func New(cfg Config) *Prober {
	return &Prober{cfg: cfg, probed: make(chan struct{}), held: make(chan struct{})}
}

// Complete reports whether a listing can be believed, and if not why.
func (h *Prober) Complete() (facts driver.Facts, ok bool, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.adopted:
		return h.facts, false, "the host agent is taking hold of the VMs it ran before its start"
	case h.facts.Driver == "" && h.problem != "":
		return h.facts, false, "the host could not be probed: " + h.problem
	case h.facts.Driver == "":
		return h.facts, false, "the host is being probed"
	}
	return h.facts, true, ""
}

// Run asks the driver for facts until it has them.
func (h *Prober) Run(ctx context.Context) {
	for {
		f, err := h.cfg.Driver.Probe(ctx)
		if err == nil {
			h.mu.Lock()
			h.facts, h.at, h.problem = f, time.Now(), ""
			h.mu.Unlock()
			close(h.probed)
			return
		}
		if ctx.Err() != nil {
			return
		}
		h.mu.Lock()
		h.problem = err.Error()
		h.mu.Unlock()
		h.cfg.Logger.Error("host cannot be probed", "error", err)
		select {
		case <-time.After(probeRetry):
		case <-ctx.Done():
			return
		}
	}
}

// Await waits for the first probe.
func (h *Prober) Await(ctx context.Context) (driver.Facts, error) {
	select {
	case <-h.probed:
	case <-ctx.Done():
		h.mu.Lock()
		problem := h.problem
		h.mu.Unlock()
		return driver.Facts{}, fleet.Wrap(fleet.CodeUnavailable, context.Cause(ctx), "the host has not been probed yet").
			With(fleet.DetailReason, problem)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.facts, nil
}

// Info is what the host is and what it takes.
type Info struct {
	Facts    fleet.HostFacts
	Capacity fleet.HostCapacity
	Images   []string
}

// Info waits for the first probe. Later it asks the driver anew, since memory,
// disk and images change; what it cannot say then stays as it was.
func (h *Prober) Info(ctx context.Context) (Info, error) {
	f, err := h.Await(ctx)
	if err != nil {
		return Info{}, err
	}
	f = h.refreshed(ctx, f)
	return Info{Facts: h.Facts(f), Capacity: h.Capacity(f), Images: f.Images}, nil
}

// refreshed is what the driver says now, or known.
func (h *Prober) refreshed(ctx context.Context, known driver.Facts) driver.Facts {
	h.mu.Lock()
	stale := time.Since(h.at) >= fresh
	if stale {
		h.at = time.Now()
	}
	h.mu.Unlock()
	if !stale {
		return known
	}
	ctx, cancel := context.WithTimeout(ctx, asking)
	defer cancel()
	f, err := h.cfg.Driver.Probe(ctx)
	if err != nil {
		h.cfg.Logger.Warn("host not probed again", "error", err)
		return known
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.facts = f
	return f
}

// Facts are the driver's as the host tells them.
func (h *Prober) Facts(f driver.Facts) fleet.HostFacts {
	return fleet.HostFacts{
		RegistryID: h.cfg.Identity.RegistryID, MachineID: h.cfg.Identity.MachineID, BootID: h.cfg.Identity.BootID,
		Driver: f.Driver, Accelerator: f.Accelerator, Version: h.cfg.Version,
		WireVersion: hostwire.WireVersion, Kernel: f.Kernel, DriverVersion: f.DriverVersion,
		CPUModel: f.CPUModel, OverheadMB: f.OverheadMB, Missing: f.Missing, Capabilities: h.capabilities(f),
		CPUOvercommit: h.cfg.CPUOvercommit, FreeHugePages: f.FreeHugePages,
	}
}

// capabilities are the driver's, but for what is switched off.
func (h *Prober) capabilities(f driver.Facts) []string {
	if !h.cfg.NoGolden {
		return f.Capabilities
	}
	return slices.DeleteFunc(slices.Clone(f.Capabilities), func(c string) bool { return c == fleet.CapGolden })
}

// Capacity is what the operator set, and where that is silent what the driver
// found.
func (h *Prober) Capacity(f driver.Facts) fleet.HostCapacity {
	or := func(set, found int) int {
		if set > 0 {
			return set
		}
		return found
	}
	c := h.cfg.Capacity
	return fleet.HostCapacity{
		CPUs: or(c.CPUs, f.CPUs), RamMB: or(c.RamMB, f.RamMB), StorageGB: or(c.StorageGB, f.StorageGB),
		VMCount: or(c.VMCount, or(f.VMCount, defaultVMCount)), Arch: f.Arch,
		HugePages: f.HugePages,
	}
}
