package snapshots

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

func vmNotFound(id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "environment %.140q: %w", id, fleet.ErrVMNotFound).With(fleet.DetailScope, id)
}

func notFound(id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "snapshot %.140q: %w", id, fleet.ErrSnapshotNotFound).With(fleet.DetailScope, id)
}

// capturable finds an environment that may be captured or put back: it runs,
// moves, has no device, and its host stays.
func capturable(tx *state.ReadTx, id, verb string, sees func(owner string) bool) (*fleet.VM, error) {
	vm, ok := tx.VMs().Get(id)
	if !ok || !sees(vm.Owner) {
		return nil, vmNotFound(id)
	}
	if vm.State != fleet.VMStateRunning {
		return nil, fleet.Errorf(fleet.CodeConflict, "cannot %s environment %s while it is %s: %w", verb, id, vm.State, fleet.ErrVMNotRunning).
			With(fleet.DetailScope, id).With(fleet.DetailUsage, "state "+string(vm.State)).With(fleet.DetailRemedy, "wait until it runs: fuse get "+id)
	}
	if vm.Spec.HasGPU() {
		return nil, fleet.Errorf(fleet.CodeConflict, "cannot %s environment %s: %w: the state of a device cannot be captured", verb, id, fleet.ErrGPUUnsupported).
			With(fleet.DetailScope, id).With(fleet.DetailRemedy, "copy what is needed out of it (fuse cp), or work in an environment without a GPU")
	}
	if a := vm.Activity(); a != "" {
		return nil, fleet.Errorf(fleet.CodeConflict, "cannot %s environment %s while it is %s", verb, id, a).
			With(fleet.DetailScope, id).With(fleet.DetailUsage, "activity "+string(a)).With(fleet.DetailRemedy, "resume it first: fuse resume "+id)
	}
	return vm, nil
}

// able refuses what a host says that it cannot do, and what would bind bytes to
// a host that is being emptied.
func able(tx *state.ReadTx, hostID, capability, verb string) error {
	h, ok := tx.Hosts().Get(hostID)
	if !ok {
		return fleet.Errorf(fleet.CodeUnavailable, "host %q: %w", hostID, fleet.ErrHostNotFound).With(fleet.DetailHostID, hostID)
	}
	if !h.Facts.Can(capability) {
		return fleet.Errorf(fleet.CodeUnimplemented, "host %s cannot %s: %w", hostID, verb, fleet.ErrSnapshotUnsupported).
			With(fleet.DetailHostID, hostID).With(fleet.DetailScope, capability).With(fleet.DetailRemedy, "update its agent, or use a host with a driver that can")
	}
	return nil
}

// notDraining refuses new snapshots on a host that is being emptied: they would
// be bound to it.
func notDraining(tx *state.ReadTx, hostID string) error {
	if h, ok := tx.Hosts().Get(hostID); ok && h.State == fleet.HostDraining {
		return fleet.Errorf(fleet.CodeUnavailable, "host %s is being drained: a snapshot would be bound to it", hostID).
			With(fleet.DetailHostID, hostID).With(fleet.DetailRemedy, "wait until the drain is over or cancel it: fuse host drain --cancel "+hostID)
	}
	return nil
}

func event(snap *fleet.Snapshot, typ string, why fleet.Reason, told any) fleet.Event {
	e := fleet.Event{
		EntityType: fleet.EntitySnapshot, EntityID: snap.SnapshotID, UID: snap.UID, VMID: snap.VMID, HostID: snap.HostID, Owner: snap.Owner,
		Type: typ, Reason: &why, Error: snap.LastError,
	}
	if told != nil {
		raw, err := json.Marshal(told)
		if err == nil { // our own plain structs and maps always encode
			e.Payload = raw
		}
	}
	return e
}

// move is a record in another state, if it is still where it was claimed; ok is
// false if it is not.
func move(tx *state.Tx, id string, to, from fleet.SnapshotState) (snap fleet.Snapshot, ok bool) {
	row, found := tx.Snapshots().Get(id)
	if !found || row.State != from {
		return snap, false
	}
	snap = *row
	snap.State = to
	return snap, true
}

// environment opens the handle of a life. Any generation: a drain raises it, and
// is no reason to leave a capture half done.
func (s *core) environment(vm *fleet.VM, op string) (provider.Environment, error) {
	p, err := s.cfg.Providers.Provider(vm.HostID)
	if err != nil {
		return nil, err
	}
	return p.Open(provider.Ref{ID: vm.ID, UID: vm.UID, OpID: op}), nil
}

func (s *core) checkpointer(vm *fleet.VM) (provider.Checkpointer, error) {
	env, err := s.environment(vm, uid.New())
	if err != nil {
		return nil, err
	}
	c, ok := env.(provider.Checkpointer)
	if !ok {
		return nil, fleet.Errorf(fleet.CodeUnimplemented, "the host of environment %s takes no snapshots: %w", vm.ID, fleet.ErrSnapshotUnsupported).
			With(fleet.DetailHostID, vm.HostID).With(fleet.DetailRemedy, "use a host with a driver that can")
	}
	return c, nil
}

func (s *core) snapshotter(hostID string) (provider.Snapshotter, error) {
	p, err := s.cfg.Providers.Provider(hostID)
	if err != nil {
		return nil, err
	}
	k, ok := provider.As[provider.Snapshotter](p)
	if !ok {
		return nil, fleet.Errorf(fleet.CodeUnimplemented, "host %s keeps no snapshots: %w", hostID, fleet.ErrSnapshotUnsupported).
			With(fleet.DetailHostID, hostID).With(fleet.DetailRemedy, "use a host with a driver that can")
	}
	return k, nil
}

// get reads a record as it is now.
func (s *core) get(id string, sees func(owner string) bool) (*fleet.Snapshot, error) {
	var found *fleet.Snapshot
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		row, ok := tx.Snapshots().Get(id)
		if !ok || !sees(row.Owner) {
			return notFound(id)
		}
		found = row
		return nil
	})
	return found, err
}

// Get reads one snapshot.
func (s *core) Get(id string, sees func(owner string) bool) (*fleet.Snapshot, error) {
	return s.get(id, sees)
}

// metadata joins what a caller says of a snapshot with its comment.
func metadata(extra map[string]string, comment string) (json.RawMessage, error) {
	all := map[string]string{}
	for k, v := range extra {
		all[k] = v
	}
	if comment != "" {
		all["comment"] = comment
	}
	if len(all) == 0 {
		return nil, nil
	}
	doc, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("encode metadata: %w", err)
	}
	return doc, nil
}

// Metadata reads what metadata wrote; nothing of what is no such document.
func Metadata(snap *fleet.Snapshot) map[string]string {
	var all map[string]string
	if json.Unmarshal(snap.Metadata, &all) != nil {
		return nil
	}
	return all
}

// until is when a snapshot may go that names how long it is kept; nil leaves it
// to the fleet's retention.
func until(now time.Time, asked time.Duration) *time.Time {
	if asked <= 0 {
		return nil
	}
	at := now.Add(asked).UTC()
	return &at
}
