package hostd_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/sim"
)

// A VM whose owner cannot be trusted may well run: nothing new gets its slot or
// its room.
func TestUnreadableOwnerKeepsSlotAndRoom(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		r.stop()
		r.cfg.Capacity = fleet.HostCapacity{VMCount: 3}
		r.boot(sim.Options{})
		elapse(time.Second)
		r.mustCreate(ref("a", "u1"), ref("b", "u2"))
		r.stop()
		// The log is lost, and u1 says that another registry owns it.
		path := filepath.Join(r.dir, "host/vms/u1/owner.json")
		doc, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var o map[string]any
		if err := json.Unmarshal(doc, &o); err != nil {
			t.Fatal(err)
		}
		o["registry_id"] = "another"
		if doc, err = json.Marshal(o); err == nil {
			err = errors.Join(os.WriteFile(path, doc, 0o600), os.WriteFile(filepath.Join(r.dir, "host", "registry.log"), nil, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		r.boot(sim.Options{})
		elapse(time.Second)
		if l := r.listing(); l.Foreign != 1 || len(l.VMs) != 1 || l.Capacity.VMCount != 3 {
			t.Fatalf("listed %+v", l)
		}
		r.mustCreate(ref("c", "u3"))
		r.wantLeft("u1", "u2", "u3", "slot-1", "slot-2", "slot-3")
		if err := r.create(ref("d", "u4")); !errors.Is(err, fleet.ErrNoCapacity) {
			t.Errorf("one more than there is room for: %v", err)
		}
	})
}
