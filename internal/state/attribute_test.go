package state_test

import (
	"context"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/memory"
)

// What an event concerns is read from the rows as its Update leaves them, also
// when the Update removes them.
func TestEventsNameWhatTheyConcern(t *testing.T) {
	j := memory.New(memory.Options{})
	s, err := state.Open(t.Context(), state.Config{Journal: j, Lease: j})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	want := func(e fleet.Event, vm, host, owner string) {
		t.Helper()
		if e.VMID != vm || e.HostID != host || e.Owner != owner {
			t.Errorf("%s concerns %q on %q of %q, want %q on %q of %q", e.Type, e.VMID, e.HostID, e.Owner, vm, host, owner)
		}
	}
	events := update(t, s, func(tx *state.Tx) error {
		if err := tx.PutHost(fleet.Host{ID: "h1", Owner: "ops", State: fleet.HostActive, Capacity: fleet.HostCapacity{CPUs: 9, RamMB: 9999, StorageGB: 99, VMCount: 9}}); err != nil {
			return err
		}
		tx.Emit(fleet.Event{EntityType: fleet.EntityTask, EntityID: "t", UID: "u1", Type: fleet.EventTaskAssigned})
		tx.Emit(fleet.Event{EntityType: fleet.EntityHost, EntityID: "h1", Type: fleet.EventHostRegistered})
		tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: "fuse-t", UID: "u1", Type: fleet.EventVMProvisioning, Owner: "told"})
		return tx.PutVM(fleet.VM{ID: "fuse-t", UID: "u1", TaskID: "t", HostID: "h1", Owner: "ann", State: fleet.VMStateProvisioning})
	}).Events
	want(events[0], "fuse-t", "h1", "ann")
	want(events[1], "", "h1", "ops")
	want(events[2], "fuse-t", "h1", "told")

	events = update(t, s, func(tx *state.Tx) error {
		if err := tx.DeleteVM("fuse-t"); err != nil {
			return err
		}
		tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: "fuse-t", UID: "u1", Type: fleet.EventVMRemoved, State: fleet.VMStateDestroyed})
		return tx.PutLife(fleet.Life{UID: "u1", VMID: "fuse-t", HostID: "h1", Owner: "ann", State: fleet.VMStateDestroyed})
	}).Events
	want(events[0], "fuse-t", "h1", "ann")

	events = update(t, s, func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: fleet.EntityHost, EntityID: "h1", Type: fleet.EventHostRemoved})
		tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: "fuse-x", UID: "u9", Type: fleet.EventVMOrphanDestroy, HostID: "h1"})
		return tx.DeleteHost("h1")
	}).Events
	want(events[0], "", "h1", "ops")
	want(events[1], "fuse-x", "h1", "")
}
