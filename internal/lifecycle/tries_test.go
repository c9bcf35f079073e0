package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// byHost are several machines.
type byHost map[string]*host

func (p byHost) Provider(id string) (provider.Provider, error) { return p[id], nil }

var errFull = fleet.Errorf(fleet.CodeUnavailable, "%w: ram_mb of this host is used up", fleet.ErrNoCapacity).
	With(fleet.DetailLimit, "1024").With(fleet.DetailRemedy, "destroy environments")

// several is a fixture with hosts h1 to hN beside "local", which is cordoned.
func several(t *testing.T, n int, change func(*Config)) (*fixture, byHost) {
	t.Helper()
	hosts := byHost{}
	f := setup(t, func(c *Config) {
		hosts["local"] = newHost()
		c.Providers = hosts
		if change != nil {
			change(c)
		}
	})
	f.update(t, func(tx *state.Tx) error {
		local, _ := tx.Hosts().Get("local")
		row := *local
		row.State = fleet.HostCordoned
		if err := tx.PutHost(row); err != nil {
			return err
		}
		for i := range n {
			id := fmt.Sprint("h", i+1)
			hosts[id] = newHost()
			row.ID, row.State = id, fleet.HostActive
			if err := tx.PutHost(row); err != nil {
				return err
			}
		}
		return nil
	})
	return f, hosts
}

func refuse(err error) func(context.Context, provider.CreateRequest) error {
	return func(context.Context, provider.CreateRequest) error { return err }
}

// reserved is what each host's record says is taken there.
func (f *fixture) reserved() map[string]int {
	slots := map[string]int{}
	f.view(func(tx *state.ReadTx) {
		for h := range tx.Hosts().All() {
			if h.Allocated.VMCount != 0 || h.Allocated.CPUs != 0 {
				slots[h.ID] = h.Allocated.VMCount
			}
		}
	})
	return slots
}

func TestTheNextHostIsAsked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, hosts := several(t, 3, nil)
		hosts["h1"].create = refuse(errFull)
		var during map[string]int
		hosts["h2"].create = func(context.Context, provider.CreateRequest) error {
			during = f.reserved()
			return nil
		}
		vm, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t", Owner: "ann"})
		if err != nil {
			t.Fatal(err)
		}
		if vm.HostID != "h2" || vm.Generation != 2 || vm.Placement.HostID != "h2" || vm.Placement.Tries != 2 || vm.Placement.Candidates != 2 {
			t.Errorf("got %+v with placement %+v", vm, vm.Placement)
		}
		want := map[string]int{"h2": 1}
		if diff := cmp.Diff(want, during); diff != "" {
			t.Error("reserved while the second host makes it:", diff)
		}
		if diff := cmp.Diff(want, f.reserved()); diff != "" {
			t.Error("reserved:", diff)
		}
		if !hosts["h1"].over[vm.UID] {
			t.Error("the host that refused was not asked whether anything is left")
		}
		f.wantEvents(t, vm.UID, fleet.EventVMProvisioning, fleet.EventTaskAssigned, fleet.EventVMScheduled,
			fleet.EventVMHostRefused, fleet.EventVMScheduled, fleet.EventVMRunning, fleet.EventTaskRunning)
		for _, e := range f.events(t, vm.UID) {
			if e.Type == fleet.EventVMHostRefused && (e.HostID != "h1" || !strings.Contains(string(e.Payload), "ram_mb of this host is used up")) {
				t.Errorf("refusal tells %+v %s", e, e.Payload)
			}
		}
	})
}

func TestTriesAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, hosts := several(t, 5, func(c *Config) { c.Limits.Tries = 3 })
		asked := map[string]int{}
		for id, h := range hosts {
			h.create = func(context.Context, provider.CreateRequest) error { asked[id]++; return errFull }
		}
		_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"})
		if !errors.Is(err, fleet.ErrNoCapacity) || fleet.CodeOf(err) != fleet.CodeUnavailable {
			t.Errorf("got %v", err)
		}
		if diff := cmp.Diff(map[string]int{"h1": 1, "h2": 1, "h3": 1}, asked); diff != "" {
			t.Error("asked:", diff)
		}
		f.wantNothingLeft(t)
		if r := f.reserved(); len(r) > 0 {
			t.Errorf("still reserved: %v", r)
		}
	})
}

// Two hosts refuse and there is no third: the error says what became of each.
func TestNobodyIsLeftToAsk(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, hosts := several(t, 2, nil)
		hosts["h1"].create, hosts["h2"].create = refuse(errFull), refuse(errFull)
		_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"})
		var fe *fleet.Error
		if !errors.As(err, &fe) || !errors.Is(err, fleet.ErrNoCapacity) || fe.Details[fleet.DetailReason] != "state refused 1, asked refused 2" ||
			!strings.Contains(err.Error(), "no other host takes it: state refused 1, asked refused 2") || fe.Details[fleet.DetailRemedy] == "" {
			t.Errorf("got %v with %v", err, fe.Details)
		}
		// What is kept is the owner's to read, who need not know the hosts.
		if kept := f.life(t, "fuse-t"); strings.Contains(kept.Error, "h1") || strings.Contains(kept.Error, "h2") || !strings.Contains(kept.Error, "refused 2") {
			t.Errorf("kept %q", kept.Error)
		}
		f.wantNothingLeft(t)
	})
}

// A host that refuses and then does not confirm that nothing is left keeps the
// environment: another copy could be there.
func TestNoMoveWithoutConfirmation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, hosts := several(t, 2, nil)
		hosts["h1"].create = refuse(errFull)
		hosts["h1"].destroy = func(context.Context, provider.Ref) error { return errors.New("no answer") }
		_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"})
		if !errors.Is(err, fleet.ErrNoCapacity) {
			t.Errorf("got %v", err)
		}
		if vm := f.vm(t, "fuse-t"); vm.State != fleet.VMStateDestroying || vm.HostID != "h1" || len(hosts["h2"].has()) > 0 {
			t.Errorf("row %+v, h2 has %v", vm, hosts["h2"].has())
		}
		if diff := cmp.Diff(map[string]int{"h1": 1}, f.reserved()); diff != "" {
			t.Error("reserved:", diff)
		}
	})
}

// A destroy that comes while the host is being changed wins.
func TestDestroyWhileMovingOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, hosts := several(t, 2, nil)
		gone := make(chan error, 1)
		hosts["h1"].create = func(ctx context.Context, _ provider.CreateRequest) error {
			go func() {
				gone <- f.svc.Destroy(context.WithoutCancel(ctx), "fuse-t", fleet.Reason{Actor: fleet.ActorMaster, Rule: fleet.RuleManualDestroy})
			}()
			<-ctx.Done()
			return errFull
		}
		if _, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t"}); err == nil {
			t.Error("it was created")
		}
		if err := <-gone; err != nil {
			t.Error(err)
		}
		f.wantNothingLeft(t)
		if len(hosts["h2"].has()) > 0 || len(f.reserved()) > 0 {
			t.Errorf("h2 has %v, reserved %v", hosts["h2"].has(), f.reserved())
		}
	})
}

func TestHugePagesAreAGate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f, _ := several(t, 2, nil)
		_, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t", Spec: fleet.Spec{HugePages: true}})
		var fe *fleet.Error
		if !errors.As(err, &fe) || !errors.Is(err, fleet.ErrNoCapacity) || fe.Details[fleet.DetailLimit] != "0 free huge pages" {
			t.Errorf("got %v with %v", err, fe)
		}
		f.update(t, func(tx *state.Tx) error {
			h, _ := tx.Hosts().Get("h2")
			row := *h
			row.Capacity.HugePages = 256
			return tx.PutHost(row)
		})
		vm, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "t", Spec: fleet.Spec{HugePages: true}})
		if err != nil || vm.HostID != "h2" {
			t.Fatalf("got %+v, %v", vm, err)
		}
		if _, err := f.svc.Create(t.Context(), CreateRequest{TaskID: "u", Spec: fleet.Spec{HugePages: true, RamMB: 64}}); !errors.Is(err, fleet.ErrNoCapacity) {
			t.Errorf("the pages were given twice: %v", err)
		}
	})
}
