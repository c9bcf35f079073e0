package fake

import (
	"context"
	"errors"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/simguest"
)

// Provider is the fake host as one fleet reaches it.
type Provider struct {
	h      *Host
	fencer provider.Fencer
}

var (
	_ provider.Provider       = (*Provider)(nil)
	_ provider.CapacityProber = (*Provider)(nil)
	_ provider.Claimer        = (*Provider)(nil)
	_ provider.Purger         = (*Provider)(nil)
)

// Claim raises the fleet's mark.
func (p *Provider) Claim(ctx context.Context) (c provider.Claimed, err error) {
	err = p.h.call(ctx, Claim, func() error {
		p.h.mu.Lock()
		defer p.h.mu.Unlock()
		f, err := p.fencer.Fence()
		if err == nil {
			c.Term = f.Term
			c.Replaced, err = p.h.claimLocked(p.fencer, f)
		}
		return err
	})
	return c, err
}

// PurgeFleet ends the VMs of another fleet.
func (p *Provider) PurgeFleet(ctx context.Context, fleetID string, force bool) (destroyed, failed int, err error) {
	err = p.h.call(ctx, Purge, func() error {
		p.h.mu.Lock()
		defer p.h.mu.Unlock()
		f, err := p.h.admitLocked(p.fencer)
		switch {
		case err != nil:
			return err
		case fleetID == f.FleetID || fleetID == "":
			return fleet.Errorf(fleet.CodeInvalidArgument, "%q is not another fleet", fleetID)
		case !force && p.h.marks.SeenSince(fleetID, time.Now().Add(-time.Minute)):
			return conflict("fleet %s is led", fleetID)
		}
		for _, v := range p.h.vms {
			if v.fleetID == fleetID {
				p.h.dropLocked(v, nil)
				destroyed++
			}
		}
		return nil
	})
	return destroyed, failed, err
}

// Create makes a VM. The latency of create is its boot time; a caller that
// leaves does not end it, a destroy does.
func (p *Provider) Create(ctx context.Context, req provider.CreateRequest) (created provider.Created, err error) {
	h := p.h
	h.mu.Lock()
	h.calls[Create]++
	var due *fault
	if q := h.faults[Create]; len(q) > 0 {
		due, h.faults[Create] = q[0], q[1:]
	}
	if due != nil && due.err != nil {
		h.mu.Unlock()
		return provider.Created{}, due.err
	}
	v, first, err := h.admitCreateLocked(p.fencer, req)
	h.mu.Unlock()
	if err != nil {
		return provider.Created{}, err
	}
	if first && req.Progress != nil {
		req.Progress("boot")
	}
	select {
	case <-v.made:
	case <-ctx.Done():
		return provider.Created{}, lost(context.Cause(ctx))
	}
	if due != nil && due.lose {
		return provider.Created{}, lost(errors.New("the test loses this answer"))
	}
	if v.err != nil {
		return provider.Created{}, v.err
	}
	created = v.created
	created.Environment = p.Open(req.Ref)
	return created, nil
}

// admitCreateLocked registers a VM and begins its boot, or finds the create
// that is repeated.
func (h *Host) admitCreateLocked(fencer provider.Fencer, req provider.CreateRequest) (v *vm, first bool, err error) {
	f, err := h.admitLocked(fencer)
	if err != nil {
		return nil, false, err
	}
	if e, over := h.ended[req.UID]; over {
		if e.fleetID == f.FleetID && e.opID == req.OpID && e.err != nil {
			return nil, false, e.err
		}
		return nil, false, conflict("life %s of %s has ended and cannot be created again", req.UID, req.ID)
	}
	if v := h.vms[req.UID]; v != nil {
		if v.fleetID != f.FleetID || v.req.Ref != req.Ref {
			return nil, false, conflict("life %s of %s is already there", req.UID, req.ID)
		}
		return v, false, nil
	}
	for _, v := range h.vms {
		if v.fleetID == f.FleetID && v.req.ID == req.ID {
			return nil, false, conflict("%s is still there in its life %s", req.ID, v.req.UID)
		}
	}
	if err := errors.Join(h.validate(req), h.roomLocked(req.Spec)); err != nil {
		return nil, false, err
	}
	v = &vm{
		req: req, fleetID: f.FleetID, made: make(chan struct{}), stopped: make(chan struct{}),
		files: map[string]fleet.GuestFile{}, drains: map[string]fleet.ExecStatus{},
	}
	var ctx context.Context
	ctx, v.end = context.WithCancelCause(context.Background())
	h.vms[req.UID] = v
	if h.delays[Create] == 0 {
		h.settleLocked(v, 0)
	} else {
		go h.boot(ctx, v, h.delays[Create]) // ends with its time or the VM's destroy
	}
	return v, true, nil
}

func (h *Host) boot(ctx context.Context, v *vm, takes time.Duration) {
	timer := time.NewTimer(takes)
	defer timer.Stop()
	select {
	case <-timer.C:
		h.mu.Lock()
		defer h.mu.Unlock()
		if ctx.Err() == nil {
			h.settleLocked(v, takes)
			return
		}
	case <-ctx.Done():
	}
	v.err = fleet.Errorf(fleet.CodeConflict, "the environment was destroyed while it was being created").
		With(fleet.DetailReason, "destroyed")
	close(v.made)
}

func (h *Host) settleLocked(v *vm, took time.Duration) {
	v.created = provider.Created{
		ImageDigest: "sha256:fake-" + v.req.Spec.Image,
		Boot:        fleet.BootRecord{Mode: fleet.BootCold, Steps: []fleet.StepTime{{Step: "boot", Took: took}}},
	}
	close(v.made)
}

// Get looks at one VM.
func (p *Provider) Get(ctx context.Context, ref provider.Ref) (got fleet.ObservedVM, err error) {
	f, err := p.fencer.Fence()
	if err != nil {
		return got, err
	}
	err = p.h.call(ctx, Get, func() error {
		p.h.mu.Lock()
		defer p.h.mu.Unlock()
		for _, v := range p.h.vms {
			if v.fleetID == f.FleetID && v.req.ID == ref.ID && (ref.UID == "" || v.req.UID == ref.UID) {
				got = v.observed()
				return nil
			}
		}
		return notFound(ref.ID)
	})
	return got, err
}

func (v *vm) observed() fleet.ObservedVM {
	return fleet.ObservedVM{ID: v.req.ID, UID: v.req.UID, Generation: v.req.Generation, Running: v.exit == nil, Paused: v.paused && v.exit == nil, Exit: v.exit}
}

// Destroy ends a VM.
func (p *Provider) Destroy(ctx context.Context, ref provider.Ref) error {
	return p.h.call(ctx, Destroy, func() error {
		p.h.mu.Lock()
		defer p.h.mu.Unlock()
		f, err := p.h.admitLocked(p.fencer)
		if err != nil {
			return err
		}
		v := p.h.vms[ref.UID]
		if v == nil {
			if _, over := p.h.ended[ref.UID]; !over {
				p.h.ended[ref.UID] = ended{fleetID: f.FleetID}
			}
			return nil
		}
		if err := v.isMeant(f, ref); err != nil {
			return err
		}
		p.h.dropLocked(v, nil)
		return nil
	})
}

// List looks at the host.
func (p *Provider) List(ctx context.Context) (l provider.Listing, err error) {
	f, err := p.fencer.Fence()
	if err != nil {
		return l, err
	}
	err = p.h.call(ctx, List, func() error {
		l = p.h.listing(f.FleetID)
		return nil
	})
	return l, err
}

func (h *Host) listing(fleetID string) provider.Listing {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := provider.Listing{Facts: h.opts.Facts, Complete: h.complete, Reason: h.reason}
	if !h.complete {
		return l
	}
	l.Reason = ""
	for _, v := range h.vms {
		if v.fleetID != fleetID {
			l.Foreign++
			if l.ForeignFleets == nil {
				l.ForeignFleets = map[string]int{}
			}
			l.ForeignFleets[v.fleetID]++
			continue
		}
		l.VMs = append(l.VMs, v.observed())
		if v.exit != nil {
			l.Exits = append(l.Exits, *v.exit)
		}
	}
	return l
}

// Capacity reports what the host is and takes.
func (p *Provider) Capacity(context.Context) (fleet.HostCapacity, fleet.HostFacts, error) {
	return p.h.opts.Capacity, p.h.opts.Facts, nil
}

// Close has nothing to release.
func (p *Provider) Close() error { return nil }

// Open returns a handle without asking the host.
func (p *Provider) Open(ref provider.Ref) provider.Environment { return &environment{p, ref} }

type environment struct {
	p   *Provider
	ref provider.Ref
}

func (e *environment) Name() string { return e.ref.ID }
func (e *environment) URL() string  { return "" }

// running admits a call into the guest, which must not stand still.
func (e *environment) running() (*vm, error) {
	v, err := e.alive()
	if err != nil {
		return nil, err
	}
	e.p.h.mu.Lock()
	defer e.p.h.mu.Unlock()
	if v.paused {
		return nil, notRunning()
	}
	return v, nil
}

// alive admits a call about a VM that has not ended.
func (e *environment) alive() (*vm, error) {
	h := e.p.h
	h.mu.Lock()
	defer h.mu.Unlock()
	f, err := h.admitLocked(e.p.fencer)
	if err != nil {
		return nil, err
	}
	v := h.vms[e.ref.UID]
	if v == nil {
		return nil, notFound(e.ref.ID)
	}
	if err := v.isMeant(f, e.ref); err != nil {
		return nil, err
	}
	if !v.isMade() || v.exit != nil {
		return nil, notRunning()
	}
	return v, nil
}

func notRunning() error {
	return fleet.Errorf(fleet.CodeConflict, "%w", fleet.ErrVMNotRunning)
}

// ExecStream runs one of the built-in commands of simguest.
func (e *environment) ExecStream(ctx context.Context, spec fleet.ExecSpec, stdio fleet.Stdio) (status fleet.ExecStatus, err error) {
	err = e.p.h.call(ctx, Exec, func() error {
		v, err := e.running()
		if err == nil {
			status, err = e.run(ctx, v, spec, stdio)
		}
		return err
	})
	return status, err
}

func (e *environment) run(ctx context.Context, v *vm, spec fleet.ExecSpec, stdio fleet.Stdio) (fleet.ExecStatus, error) {
	status, err := simguest.Run(ctx, simguest.Machine{Hostname: v.req.Credentials.Hostname, Done: v.stopped, Read: func(path string) ([]byte, bool, error) {
		e.p.h.mu.Lock()
		defer e.p.h.mu.Unlock()
		f, ok := v.files[path]
		return f.Data, ok, nil
	}}, spec, stdio)
	switch {
	case errors.Is(err, simguest.ErrStopped):
		return status, notRunning()
	case ctx.Err() != nil && err != nil:
		return status, lost(context.Cause(ctx))
	}
	return status, err
}

// Upload writes files into the guest.
func (e *environment) Upload(ctx context.Context, files []fleet.GuestFile) error {
	return e.p.h.call(ctx, Upload, func() error {
		v, err := e.running()
		if err != nil {
			return err
		}
		e.p.h.mu.Lock()
		defer e.p.h.mu.Unlock()
		for _, f := range files {
			if f, err = simguest.File(f); err != nil {
				return err
			}
			v.files[f.Path] = f
		}
		return nil
	})
}

// Drain runs the command; a repeated operation gets the first answer.
func (e *environment) Drain(ctx context.Context, command string) (status fleet.ExecStatus, err error) {
	err = e.p.h.call(ctx, Drain, func() error {
		v, err := e.running()
		if err != nil {
			return err
		}
		e.p.h.mu.Lock()
		first, done := v.drains[e.ref.OpID]
		e.p.h.mu.Unlock()
		if done || command == "" {
			status = first
			return nil
		}
		status, err = e.run(ctx, v, fleet.ExecSpec{Argv: []string{"sh", "-lc", command}}, fleet.Stdio{})
		e.p.h.mu.Lock()
		defer e.p.h.mu.Unlock()
		if err == nil && e.ref.OpID != "" {
			v.drains[e.ref.OpID] = status
		}
		return err
	})
	return status, err
}
