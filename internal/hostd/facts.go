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

// readiness is what has been learnt since the start.
type readiness struct {
	probed chan struct{} // closed once facts is set

	mu      sync.Mutex
	facts   driver.Facts
	problem string // why the last probe did not work out
	adopted bool
}

func newReadiness() *readiness { return &readiness{probed: make(chan struct{})} }

func (r *readiness) set(f driver.Facts) {
	r.mu.Lock()
	r.facts, r.problem = f, ""
	r.mu.Unlock()
	close(r.probed)
}

func (r *readiness) setProblem(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.problem = err.Error()
}

func (r *readiness) setAdopted() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.adopted = true
}

// complete reports whether a listing can be believed, and if not why.
func (r *readiness) complete() (facts driver.Facts, ok bool, reason string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.adopted:
		return r.facts, false, "the host agent is taking hold of the VMs it ran before its start"
	case r.facts.Driver == "" && r.problem != "":
		return r.facts, false, "the host could not be probed: " + r.problem
	case r.facts.Driver == "":
		return r.facts, false, "the host is being probed"
	}
	return r.facts, true, ""
}

// probe asks the driver for facts until it has them.
func (h *Host) probe(ctx context.Context) {
	for {
		f, err := h.drv.Probe(ctx)
		if err == nil {
			h.ready.set(f)
			return
		}
		if ctx.Err() != nil {
			return
		}
		h.ready.setProblem(err)
		h.log.Error("host cannot be probed", "error", err)
		select {
		case <-time.After(probeRetry):
		case <-ctx.Done():
			return
		}
	}
}

// awaitFacts waits for the first probe.
func (h *Host) awaitFacts(ctx context.Context) (driver.Facts, error) {
	select {
	case <-h.ready.probed:
	case <-ctx.Done():
		h.ready.mu.Lock()
		problem := h.ready.problem
		h.ready.mu.Unlock()
		return driver.Facts{}, fleet.Wrap(fleet.CodeUnavailable, context.Cause(ctx), "the host has not been probed yet").
			With(fleet.DetailReason, problem)
	}
	h.ready.mu.Lock()
	defer h.ready.mu.Unlock()
	return h.ready.facts, nil
}

// Info is what the host is and what it takes.
type Info struct {
	Facts    fleet.HostFacts
	Capacity fleet.HostCapacity
	Images   []string
}

// Info waits for the first probe, then answers from what is known.
func (h *Host) Info(ctx context.Context) (Info, error) {
	f, err := h.awaitFacts(ctx)
	if err != nil {
		return Info{}, err
	}
	return Info{Facts: h.hostFacts(f), Capacity: h.capacity(f), Images: f.Images}, nil
}

func (h *Host) hostFacts(f driver.Facts) fleet.HostFacts {
	return fleet.HostFacts{
		RegistryID: h.ident.RegistryID, MachineID: h.ident.MachineID, BootID: h.ident.BootID,
		Driver: f.Driver, Accelerator: f.Accelerator, Version: h.cfg.Version,
		WireVersion: hostwire.WireVersion, Kernel: f.Kernel, DriverVersion: f.DriverVersion,
		CPUModel: f.CPUModel, OverheadMB: f.OverheadMB, Missing: f.Missing,
	}
}

// capacity is what the operator set, and where that is silent what the driver
// found.
func (h *Host) capacity(f driver.Facts) fleet.HostCapacity {
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
	}
}
