package hostd

import (
	"context"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostwire"
)

// probeRetry is the pause after a probe that did not work out.
const probeRetry = 15 * time.Second

// prober is the part of a host that knows what has been learnt since the
// start: the driver's facts, and whether the adoption has ended.
type prober struct {
	core   *core
	probed chan struct{} // closed once facts is set

	mu      sync.Mutex
	facts   driver.Facts
	problem string // why the last probe did not work out
	adopted bool
}

func newProber(c *core) *prober { return &prober{core: c, probed: make(chan struct{})} }

func (h *prober) setAdopted() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.adopted = true
}

// complete reports whether a listing can be believed, and if not why.
func (h *prober) complete() (facts driver.Facts, ok bool, reason string) {
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

// probe asks the driver for facts until it has them.
func (h *prober) probe(ctx context.Context) {
	for {
		f, err := h.core.drv.Probe(ctx)
		if err == nil {
			h.mu.Lock()
			h.facts, h.problem = f, ""
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
		h.core.log.Error("host cannot be probed", "error", err)
		select {
		case <-time.After(probeRetry):
		case <-ctx.Done():
			return
		}
	}
}

// awaitFacts waits for the first probe.
func (h *prober) awaitFacts(ctx context.Context) (driver.Facts, error) {
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

// Info waits for the first probe, then answers from what is known.
func (h *prober) Info(ctx context.Context) (Info, error) {
	f, err := h.awaitFacts(ctx)
	if err != nil {
		return Info{}, err
	}
	return Info{Facts: h.hostFacts(f), Capacity: h.capacity(f), Images: f.Images}, nil
}

func (h *prober) hostFacts(f driver.Facts) fleet.HostFacts {
	return fleet.HostFacts{
		RegistryID: h.core.ident.RegistryID, MachineID: h.core.ident.MachineID, BootID: h.core.ident.BootID,
		Driver: f.Driver, Accelerator: f.Accelerator, Version: h.core.cfg.Version,
		WireVersion: hostwire.WireVersion, Kernel: f.Kernel, DriverVersion: f.DriverVersion,
		CPUModel: f.CPUModel, OverheadMB: f.OverheadMB, Missing: f.Missing,
	}
}

// capacity is what the operator set, and where that is silent what the driver
// found.
func (h *prober) capacity(f driver.Facts) fleet.HostCapacity {
	or := func(set, found int) int {
		if set > 0 {
			return set
		}
		return found
	}
	c := h.core.cfg.Capacity
	return fleet.HostCapacity{
		CPUs: or(c.CPUs, f.CPUs), RamMB: or(c.RamMB, f.RamMB), StorageGB: or(c.StorageGB, f.StorageGB),
		VMCount: or(c.VMCount, or(f.VMCount, defaultVMCount)), Arch: f.Arch,
	}
}
