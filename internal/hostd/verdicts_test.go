package hostd_test

import (
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/sim"
)

// A listing brings the verdicts of those it is asked about, of that fleet and
// running, and of nobody else.
func TestAListingBringsVerdicts(t *testing.T) {
	bubble(t, sim.Options{}, func(t *testing.T, r *rig) {
		r.mustCreate(ref("a", "u1"), ref("b", "u2"), ref("c", "u3"), ref("d", "u4"))
		tell := func(uid, id, path, doc string) {
			t.Helper()
			to := ref(id, uid)
			to.OpID = "write-" + uid
			if err := r.WriteFiles(t.Context(), leader, to, []fleet.GuestFile{{Path: path, Data: []byte(doc)}}); err != nil {
				t.Fatal(err)
			}
		}
		tell("u1", "a", fleet.GuestHealthStatePath, `{"state":"failing","failures":3,"message":"exit code 1"}`)
		tell("u2", "b", fleet.GuestHealthcheckPath, `{"exec":["true"]}`)
		tell("u3", "c", fleet.GuestHealthStatePath, `{"state":"failing"}`)
		r.mustDestroy(ref("d", "u4"))
		began := time.Now()
		l := r.ListVerdicts(t.Context(), leader.FleetID, []string{"u1", "u2", "u4", "nobody"})
		got := map[string]fleet.HealthState{}
		for _, vm := range l.VMs {
			if vm.Health != nil {
				got[vm.UID] = vm.Health.State
			}
		}
		if !l.Complete || len(l.VMs) != 3 || len(got) != 2 || got["u1"] != fleet.HealthFailing || got["u2"] != fleet.HealthPassing || time.Since(began) > 0 {
			t.Errorf("complete %v, %d VMs, verdicts %v", l.Complete, len(l.VMs), got)
		}
		foreign := r.ListVerdicts(t.Context(), "ANOTHERFLEET", []string{"u1"})
		if len(foreign.VMs) != 0 || foreign.Foreign != 3 {
			t.Errorf("another fleet sees %+v", foreign)
		}
	})
}
