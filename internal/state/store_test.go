package state_test

import (
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/internal/uid"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestUpdateIsVisibleWhenItReturns(t *testing.T) {
	s := storetest.Open(t)
	vm := fleet.VM{ID: "fuse-a", UID: uid.New(), TaskID: "a", State: fleet.VMStateProvisioning, HostID: "h1"}
	c, err := s.Update(t.Context(), func(tx *state.Tx) error {
		if err := tx.PutHost(fleet.Host{ID: "h1", Capacity: fleet.HostCapacity{CPUs: 4, RamMB: 4096, StorageGB: 10, VMCount: 2}}); err != nil {
			return err
		}
		tx.Emit(fleet.Event{EntityType: state.EntityVM, EntityID: vm.ID, UID: vm.UID, Type: fleet.EventVMProvisioning, State: vm.State})
		return tx.PutVM(vm)
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Events) != 1 || c.Events[0].Seq != 1 || c.Revision != 1 {
		t.Errorf("commit %+v", c)
	}
	err = s.View(func(tx *state.ReadTx) error {
		got, ok := tx.VMs().Get("fuse-a")
		if !ok || got.Revision != 1 || tx.Revision() != 1 || tx.VMs().Len() != 1 {
			t.Errorf("got %+v %v at %d", got, ok, tx.Revision())
		}
		h, _ := tx.Hosts().Get("h1")
		if h.Allocated.VMCount != 1 {
			t.Errorf("allocated %+v", h.Allocated)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
