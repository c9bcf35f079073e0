package fake

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/uid"
)

// Calls about snapshots and standstill.
const (
	Take      = "take"
	Restore   = "restore"
	Fork      = "fork"
	Pause     = "pause"
	Resume    = "resume"
	Snapshots = "snapshots"
	Discard   = "discard"
)

// SnapshotBytes is the size of every snapshot of a fake host.
const SnapshotBytes = 1 << 20

// artifact is a captured VM: its files, and whether its memory is there.
type artifact struct {
	fleet.Artifact
	fleetID string
	files   map[string]fleet.GuestFile
	spec    fleet.Spec
}

var (
	_ provider.Snapshotter  = (*Provider)(nil)
	_ provider.Checkpointer = (*environment)(nil)
	_ provider.Pauser       = (*environment)(nil)
)

// Shelf is what a host keeps of snapshots, for tests.
type Shelf struct{ h *Host }

// Shelf gives what the host keeps of snapshots.
func (h *Host) Shelf() Shelf { return Shelf{h} }

// Artifacts lists the ids of the snapshots on the host, sorted.
func (s Shelf) Artifacts() []string {
	h := s.h
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.artifacts))
}

// Plant puts a snapshot onto the host that nobody asked for.
func (s Shelf) Plant(fleetID string, a fleet.Artifact) {
	h := s.h
	h.mu.Lock()
	defer h.mu.Unlock()
	h.artifacts[a.ID] = &artifact{Artifact: a, fleetID: fleetID}
}

// WriteDisksOnly makes the host write disks even where memory is asked for.
func (s Shelf) WriteDisksOnly() {
	h := s.h
	h.mu.Lock()
	defer h.mu.Unlock()
	h.diskOnly = true
}

// LoseBytes makes a snapshot disappear without a trace; false if it is not there.
func (s Shelf) LoseBytes(id string) bool {
	h := s.h
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.artifacts[id]
	delete(h.artifacts, id)
	return ok
}

// Spoil marks a snapshot as one that does not hold what was written.
func (s Shelf) Spoil(id, why string) {
	h := s.h
	h.mu.Lock()
	defer h.mu.Unlock()
	if a := h.artifacts[id]; a != nil {
		a.Bad = why
	}
}

// Paused says whether a VM stands still.
func (h *Host) Paused(uid string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.vms[uid]
	return v != nil && v.paused
}

func digestOf(files map[string]fleet.GuestFile) string {
	sum := sha256.New()
	for _, p := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(sum, "%s %d ", p, len(files[p].Data))
		sum.Write(files[p].Data)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// TakeSnapshot captures the files of a VM.
func (e *environment) TakeSnapshot(ctx context.Context, req provider.TakeRequest) (out fleet.Artifact, err error) {
	h := e.p.h
	err = h.call(ctx, Take, func() error {
		v, err := e.running()
		if err != nil {
			return err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if _, gone := h.discarded[req.SnapshotID]; gone {
			return conflict("snapshot %s was deleted", req.SnapshotID)
		}
		if have := h.artifacts[req.SnapshotID]; have != nil {
			if have.fleetID == v.fleetID && have.UID == v.req.UID {
				out = have.Artifact
				return nil
			}
			return conflict("there is a snapshot %s", req.SnapshotID)
		}
		read(req.Progress, "disk")
		files := maps.Clone(v.files)
		a := &artifact{fleetID: v.fleetID, files: files, spec: v.req.Spec, Artifact: fleet.Artifact{
			ID: req.SnapshotID, VMID: v.req.ID, UID: v.req.UID, Kind: fleet.SnapshotKindDisk, Digest: digestOf(files), SizeBytes: SnapshotBytes,
			Machine:   fleet.MachineFacts{Driver: h.opts.Facts.Driver, CPUs: v.req.Spec.CPUs, RamMB: v.req.Spec.RamMB},
			CreatedAt: time.Now().UTC(),
		}}
		if req.Live && !h.diskOnly {
			a.Kind, a.Files = fleet.SnapshotKindLive, map[string]string{"mem": a.Digest}
		}
		h.artifacts[req.SnapshotID] = a
		out = a.Artifact
		return nil
	})
	return out, err
}

// usable finds a snapshot that may be used as asked for.
func usableLocked(h *Host, fleetID, id, digest string) (*artifact, error) {
	a := h.artifacts[id]
	switch {
	case a == nil || a.fleetID != fleetID:
		return nil, fleet.Errorf(fleet.CodeNotFound, "this host has no snapshot %s: %w", id, fleet.ErrSnapshotNotFound)
	case a.Bad != "" || a.Digest != digest:
		return nil, fleet.Errorf(fleet.CodeConflict, "snapshot %s: %w: %s", id, fleet.ErrSnapshotCorrupt, cmp.Or(a.Bad, "another digest"))
	}
	return a, nil
}

// read tells that a host has read a part of what it keeps, before it spends a
// call's latency.
func read(tell func(provider.SnapshotProgress), part string) {
	if tell != nil {
		tell(provider.SnapshotProgress{Phase: part, Done: SnapshotBytes, Total: SnapshotBytes, Rate: SnapshotBytes})
	}
}

// RestoreSnapshot gives a VM the files of a snapshot back.
func (e *environment) RestoreSnapshot(ctx context.Context, req provider.RestoreRequest) (out provider.Resumed, err error) {
	h := e.p.h
	read(req.Progress, "check")
	err = h.call(ctx, Restore, func() error {
		v, err := e.running()
		if err != nil {
			return err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		a, err := usableLocked(h, v.fleetID, req.SnapshotID, req.Digest)
		if err != nil {
			return err
		}
		if a.Kind != req.Kind {
			return conflict("snapshot %s is %s, not %s", a.ID, a.Kind, req.Kind)
		}
		v.files = maps.Clone(a.files)
		if a.Kind == fleet.SnapshotKindLive {
			out.Certificate = certificate(fleet.ThawRestore)
		} else {
			out.Boot.Mode = fleet.BootCold
		}
		return nil
	})
	return out, err
}

func certificate(cause string) *fleet.Certificate {
	return &fleet.Certificate{Cause: cause, Generation: uid.New(), Renewed: []fleet.Renewal{{Name: "kernel_rng"}, {Name: "clock"}}, At: time.Now().UTC()}
}

// Pause lets a VM stand still.
func (e *environment) Pause(ctx context.Context, tell func(provider.SnapshotProgress)) (kept int64, err error) {
	read(tell, "memory")
	err = e.p.h.call(ctx, Pause, func() error {
		v, err := e.alive()
		if err != nil {
			return err
		}
		e.p.h.mu.Lock()
		defer e.p.h.mu.Unlock()
		v.paused, kept = true, SnapshotBytes
		return nil
	})
	return kept, err
}

// Resume lets a VM go on.
func (e *environment) Resume(ctx context.Context, tell func(provider.SnapshotProgress)) (out provider.Resumed, err error) {
	read(tell, "memory")
	err = e.p.h.call(ctx, Resume, func() error {
		v, err := e.alive()
		if err != nil {
			return err
		}
		e.p.h.mu.Lock()
		defer e.p.h.mu.Unlock()
		if v.paused {
			v.paused, out.Certificate = false, certificate(fleet.ThawResume)
		}
		return nil
	})
	return out, err
}

// CreateFromSnapshot makes a VM with the files of a snapshot, those of the
// captured guest's own excepted.
func (p *Provider) CreateFromSnapshot(ctx context.Context, req provider.CreateRequest, seed provider.Seed) (out provider.Created, err error) {
	h := p.h
	read(seed.Tell, "memory")
	err = h.call(ctx, Fork, func() error {
		h.mu.Lock()
		f, err := h.admitLocked(p.fencer)
		var a *artifact
		if err == nil {
			a, err = usableLocked(h, f.FleetID, seed.SnapshotID, seed.Digest)
		}
		if err == nil && seed.Live != (a.Kind == fleet.SnapshotKindLive) {
			err = fleet.Errorf(fleet.CodeConflict, "snapshot %s is %s: %w", a.ID, a.Kind, fleet.ErrSnapshotNotSeedable)
		}
		var files map[string]fleet.GuestFile
		if err == nil {
			files = maps.Clone(a.files)
		}
		h.mu.Unlock()
		if err != nil {
			return err
		}
		req.Spec.Image = "" // it needs none
		if out, err = p.Create(ctx, req); err != nil {
			return err
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		v := h.vms[req.UID]
		if v == nil {
			return conflict("%s was destroyed while it was being created", req.ID)
		}
		maps.DeleteFunc(files, func(p string, _ fleet.GuestFile) bool {
			return strings.HasPrefix(p, fleet.ReservedGuestDir+"/") || strings.HasPrefix(p, fleet.GuestEgressDir+"/")
		})
		maps.Copy(v.files, files)
		for _, f := range seed.Files {
			v.files[f.Path] = f
		}
		v.seed = seed.SnapshotID
		out.Boot.Mode = fleet.BootSeed
		if seed.Live {
			out.Certificate = certificate(fleet.ThawFork)
		}
		return nil
	})
	return out, err
}

// Snapshots lists what the host keeps for the fleet.
func (p *Provider) Snapshots(ctx context.Context) (l provider.SnapshotListing, err error) {
	f, err := p.fencer.Fence()
	if err != nil {
		return l, err
	}
	h := p.h
	err = h.call(ctx, Snapshots, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		l.Complete, l.Reason = h.complete, h.reason
		if !h.complete {
			return nil
		}
		for _, id := range slices.Sorted(maps.Keys(h.artifacts)) {
			a := h.artifacts[id]
			if a.fleetID != f.FleetID {
				l.Foreign++
				continue
			}
			out := a.Artifact
			for _, v := range h.vms {
				if v.seed == id {
					out.Users = append(out.Users, v.req.ID)
				}
			}
			slices.Sort(out.Users)
			l.Snapshots = append(l.Snapshots, out)
		}
		return nil
	})
	return l, err
}

// DeleteSnapshot removes a snapshot.
func (p *Provider) DeleteSnapshot(ctx context.Context, id, _ string) error {
	h := p.h
	return h.call(ctx, Discard, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		f, err := h.admitLocked(p.fencer)
		if err != nil {
			return err
		}
		if a := h.artifacts[id]; a != nil && a.fleetID != f.FleetID {
			return fleet.Errorf(fleet.CodeForbidden, "snapshot %s belongs to another fleet", id)
		}
		delete(h.artifacts, id)
		h.discarded[id] = true
		return nil
	})
}
