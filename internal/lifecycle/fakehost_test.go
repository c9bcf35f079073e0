package lifecycle

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
)

// host is a machine that keeps its VMs in a map and fails as it is told.
type host struct {
	// Hooks run outside the lock before the call has its effect; an error is
	// the host's refusal. Set them before the host is used.
	create  func(ctx context.Context, req provider.CreateRequest) error
	destroy func(ctx context.Context, ref provider.Ref) error
	upload  func(ctx context.Context, files []fleet.GuestFile) error
	exec    func(ctx context.Context, spec fleet.ExecSpec, io fleet.Stdio) (fleet.ExecStatus, error)
	drain   func(ctx context.Context, command string) (fleet.ExecStatus, error)
	drainOp func(opID string)
	// created runs after a VM was made; an error is a lost answer.
	created func(ctx context.Context, req provider.CreateRequest) error

	mu    sync.Mutex
	vms   map[string]string // id to uid
	over  map[string]bool   // uids that ended: they cannot be created again
	files map[string]fleet.GuestFile
	creds provider.Credentials
	busy  map[string]bool
	// wrong tells of calls that must not come: two at once for a VM, or a
	// create of one that is there.
	wrong string
}

// enter marks a call that changes a VM, for as long as it runs.
func (h *host) enter(id string) (leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.busy[id] {
		h.wrong = "two calls at once for " + id
	}
	h.busy[id] = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.busy[id] = false
	}
}

func newHost() *host {
	return &host{vms: map[string]string{}, over: map[string]bool{}, files: map[string]fleet.GuestFile{}, busy: map[string]bool{}}
}

var errUIDOver = errors.New("this life is over")

func (h *host) Create(ctx context.Context, req provider.CreateRequest) (provider.Created, error) {
	defer h.enter(req.ID)()
	if req.Progress != nil {
		req.Progress("boot")
	}
	if h.create != nil {
		if err := h.create(ctx, req); err != nil {
			return provider.Created{}, err
		}
	}
	h.mu.Lock()
	if h.over[req.UID] {
		h.mu.Unlock()
		return provider.Created{}, errUIDOver
	}
	if _, there := h.vms[req.ID]; there {
		h.wrong = req.ID + " was made while it was there"
	}
	h.vms[req.ID] = req.UID
	h.creds = req.Credentials
	h.mu.Unlock()
	if h.created != nil {
		if err := h.created(ctx, req); err != nil {
			return provider.Created{}, err
		}
	}
	return provider.Created{
		Environment: guest{h, req.Ref}, ImageDigest: "sha256:1",
		Boot: fleet.BootRecord{Mode: fleet.BootCold, Steps: []fleet.StepTime{{Step: "boot", Took: time.Millisecond}}},
	}, nil
}

func (h *host) Get(_ context.Context, ref provider.Ref) (fleet.ObservedVM, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	uid, ok := h.vms[ref.ID]
	if !ok {
		return fleet.ObservedVM{}, fleet.Errorf(fleet.CodeNotFound, "no vm %s", ref.ID)
	}
	return fleet.ObservedVM{ID: ref.ID, UID: uid, Running: true}, nil
}

func (h *host) Open(ref provider.Ref) provider.Environment { return guest{h, ref} }

func (h *host) Destroy(ctx context.Context, ref provider.Ref) error {
	defer h.enter(ref.ID)()
	if h.destroy != nil {
		if err := h.destroy(ctx, ref); err != nil {
			return err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.over[ref.UID] = true
	if h.vms[ref.ID] == ref.UID {
		delete(h.vms, ref.ID)
	}
	return nil
}

func (h *host) List(context.Context) (provider.Listing, error) {
	return provider.Listing{Complete: true}, nil
}

func (h *host) Close() error { return nil }

// has returns what the host runs, id to uid.
func (h *host) has() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.vms)
}

func (h *host) file(path string) (fleet.GuestFile, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f, ok := h.files[path]
	return f, ok
}

type guest struct {
	h   *host
	ref provider.Ref
}

func (g guest) Name() string { return g.ref.ID }
func (g guest) URL() string  { return "127.0.0.1:9550" }

func (g guest) ExecStream(ctx context.Context, spec fleet.ExecSpec, io fleet.Stdio) (fleet.ExecStatus, error) {
	if g.h.exec != nil {
		return g.h.exec(ctx, spec, io)
	}
	return fleet.ExecStatus{}, ctx.Err()
}

func (g guest) Upload(ctx context.Context, files []fleet.GuestFile) error {
	if g.h.upload != nil {
		if err := g.h.upload(ctx, files); err != nil {
			return err
		}
	}
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	for _, f := range files {
		g.h.files[f.Path] = f
	}
	return ctx.Err()
}

func (g guest) Drain(ctx context.Context, command string) (fleet.ExecStatus, error) {
	defer g.h.enter(g.ref.ID)()
	if g.h.drainOp != nil {
		g.h.drainOp(g.ref.OpID)
	}
	if g.h.drain != nil {
		return g.h.drain(ctx, command)
	}
	return fleet.ExecStatus{}, ctx.Err()
}

// providers finds the one host there is.
type providers struct{ h provider.Provider }

func (p providers) Provider(string) (provider.Provider, error) { return p.h, nil }

// pause waits like a slow host does, but no longer than ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// plainSealer is a sealer that tests can read back.
type plainSealer struct{}

func (plainSealer) Seal(kind, id string, plain []byte) ([]byte, error) {
	return append([]byte(kind+"/"+id+":"), plain...), nil
}
