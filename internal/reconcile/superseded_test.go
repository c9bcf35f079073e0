package reconcile_test

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
)

// Of two copies of a life the one with the higher generation stays, whichever
// host comes back; a copy that is as new or newer is nobody's to judge.
func TestCopiesOfEarlierGenerations(t *testing.T) {
	for name, tt := range map[string]struct {
		listed  int64 // generation at the host that came back
		row     int64
		on      string        // the host that the row means
		state   fleet.VMState // running, if it says nothing else
		partial bool
		ends    bool
	}{
		"an earlier copy of what went elsewhere": {listed: 1, row: 2, on: "h2", ends: true},
		"of what drains elsewhere":               {listed: 1, row: 2, on: "h2", state: fleet.VMStateDraining, ends: true},
		"the other host is still making its own": {listed: 1, row: 2, on: "h2", state: fleet.VMStateProvisioning},
		"the end of the life is decided":         {listed: 1, row: 2, on: "h2", state: fleet.VMStateDestroying},
		"a copy that is as new":                  {listed: 2, row: 2, on: "h2"},
		"a newer one than the row's":             {listed: 3, row: 2, on: "h2"},
		"one whose generation is not known":      {listed: 0, row: 2, on: "h2"},
		"the row's own, claimed again since":     {listed: 1, row: 5, on: "h1"},
		"a row that has reached no host":         {listed: 1, row: 2, on: ""},
		"seen in part only":                      {listed: 1, row: 2, on: "h2", partial: true},
	} {
		t.Run(name, func(t *testing.T) {
			look := fleet.Look{HostID: "h1", ID: "look", Revision: 10}
			vm := fleet.ObservedVM{ID: "fuse-a", UID: "A", Generation: tt.listed, Running: true}
			obs := fleet.SeenComplete(look, []fleet.ObservedVM{vm}, nil, 0)
			if tt.partial {
				obs = fleet.SeenPartial(look, "adopting")
			}
			row := &fleet.VM{ID: "fuse-a", UID: "A", Generation: tt.row, HostID: tt.on, State: cmp.Or(tt.state, fleet.VMStateRunning), Revision: 5}
			r := reconcile.Plan(reconcile.Input{
				Now: time.Unix(1000, 0), FleetID: "F", Revision: 20, Heard: map[string]uint64{"h1": 15},
				Observations: map[string]fleet.Observation{"h1": obs}, VMs: []*fleet.VM{row},
			})
			var steps []reconcile.Step
			for _, s := range r.Steps {
				if s.Destroys() {
					steps = append(steps, s)
				}
			}
			if !tt.ends {
				if len(steps) != 0 {
					t.Errorf("planned %+v", steps)
				}
				return
			}
			if len(steps) != 1 || steps[0].Kind != reconcile.KindOrphan || steps[0].HostID != "h1" || steps[0].Rule != fleet.RuleSuperseded ||
				!strings.Contains(steps[0].Evidence, "generation 1 of it") || !strings.Contains(steps[0].Evidence, "generation 2 on host h2") {
				t.Fatalf("planned %+v", steps)
			}
			if why, ok := steps[0].Holds(reconcile.Now{Row: row}); !ok {
				t.Errorf("it does not hold: %s", why)
			}
			back := *row
			back.HostID = "h1"
			if _, ok := steps[0].Holds(reconcile.Now{Row: &back}); ok {
				t.Error("it holds although the row has come back there")
			}
		})
	}
}
