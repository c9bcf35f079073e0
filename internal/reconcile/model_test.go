package reconcile_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
)

// model is a small control plane and its hosts, in which every operation is
// cut into the instants at which something can come in between: a claim, its
// effect at the host and its settling; a look being sent, the host making its
// list, the answer being heard, the rows being read; a step being decided and
// applied.
type model struct {
	t        *rapid.T
	revision uint64
	rows     map[string]*fleet.VM
	hosts    map[string]*modelHost
	looks    map[string]*modelLook // in flight, by host
	complete map[string]bool       // ids of looks that were
	memory   reconcile.Memory
	pending  []reconcile.Step
	births   int
	lookNo   int
}

type modelHost struct {
	id    string
	state string // complete, partial, unseen
	vms   map[string]fleet.ObservedVM
	exits []fleet.ExitRecord
}

type modelLook struct {
	look   fleet.Look
	listed *fleet.Observation // once the host has made its list
}

func newModel(t *rapid.T) *model {
	m := &model{
		t: t, revision: 1, rows: map[string]*fleet.VM{}, hosts: map[string]*modelHost{},
		looks: map[string]*modelLook{}, complete: map[string]bool{},
	}
	for _, id := range []string{"h1", "h2"} {
		m.hosts[id] = &modelHost{id: id, state: "complete", vms: map[string]fleet.ObservedVM{}}
	}
	return m
}

// write commits a row.
func (m *model) write(vm fleet.VM) {
	m.revision++
	vm.Revision = m.revision
	m.rows[vm.UID] = &vm
}

func (m *model) remove(uid string) {
	m.revision++
	delete(m.rows, uid)
}

// act does one instant of something.
func (m *model) act() {
	host := m.hosts[rapid.SampledFrom([]string{"h1", "h2"}).Draw(m.t, "host")]
	uids := slices.Sorted(maps.Keys(m.rows))
	if len(uids) > 0 {
		vm := *m.rows[rapid.SampledFrom(uids).Draw(m.t, "row")]
		switch rapid.IntRange(0, 7).Draw(m.t, "row action") {
		case 0, 1:
			m.advance(vm)
			return
		case 2:
			m.destroy(vm)
			return
		case 3:
			m.die(vm)
			return
		}
	}
	switch rapid.IntRange(0, 9).Draw(m.t, "host action") {
	case 0, 1:
		m.births++
		uid := fmt.Sprintf("u%d", m.births)
		m.write(fleet.VM{ID: "fuse-" + uid, UID: uid, Generation: 1, HostID: host.id, State: fleet.VMStateProvisioning})
	case 2:
		host.state = rapid.SampledFrom([]string{"complete", "complete", "partial", "unseen"}).Draw(m.t, "state")
	case 3:
		m.births++
		uid := fmt.Sprintf("leak%d", m.births)
		host.vms[uid] = fleet.ObservedVM{ID: "fuse-" + uid, UID: uid, Running: true}
	case 4:
		if len(m.pending) > 0 {
			i := rapid.IntRange(0, len(m.pending)-1).Draw(m.t, "step")
			m.apply(m.pending[i])
			m.pending = slices.Delete(m.pending, i, i+1)
		}
	default:
		m.observe(host)
	}
}

// advance moves a create on: claimed, booted at the host, settled; then it may
// start to drain.
func (m *model) advance(vm fleet.VM) {
	host := m.hosts[vm.HostID]
	switch vm.State {
	case fleet.VMStateProvisioning:
		if _, booted := host.vms[vm.UID]; !booted {
			host.vms[vm.UID] = fleet.ObservedVM{ID: vm.ID, UID: vm.UID, Running: true}
			return
		}
		vm.State = fleet.VMStateRunning
		m.write(vm)
	case fleet.VMStateRunning:
		vm.State = fleet.VMStateDraining
		m.write(vm)
	}
}

// destroy moves a destroy on: claimed, gone from the host, settled.
func (m *model) destroy(vm fleet.VM) {
	host := m.hosts[vm.HostID]
	if vm.State != fleet.VMStateDestroying {
		vm.State, vm.End = fleet.VMStateDestroying, &fleet.Reason{Actor: "user:x", Rule: fleet.RuleManualDestroy}
		m.write(vm)
		return
	}
	if _, there := host.vms[vm.UID]; there && host.state != "unseen" {
		delete(host.vms, vm.UID)
		return
	}
	if host.state != "unseen" {
		m.remove(vm.UID)
	}
}

// die ends a VM at its host, with or without a record, and listed or not.
func (m *model) die(vm fleet.VM) {
	host := m.hosts[vm.HostID]
	seen, there := host.vms[vm.UID]
	if !there || !seen.Running {
		return
	}
	if rapid.Bool().Draw(m.t, "recorded") {
		host.exits = append(host.exits, fleet.ExitRecord{UID: vm.UID, VMID: vm.ID, Cause: "vmm_exited"})
	}
	if seen.Running = false; rapid.Bool().Draw(m.t, "listed") {
		host.vms[vm.UID] = seen
	} else {
		delete(host.vms, vm.UID)
	}
}

// observe moves a look on: sent, listed by the host, heard and planned on.
func (m *model) observe(host *modelHost) {
	look := m.looks[host.id]
	switch {
	case look == nil:
		m.lookNo++
		m.looks[host.id] = &modelLook{look: fleet.Look{HostID: host.id, ID: fmt.Sprintf("%s.%d", host.id, m.lookNo), Revision: m.revision}}
	case look.listed == nil:
		obs := fleet.NotSeen(look.look, "down")
		switch host.state {
		case "complete":
			obs = fleet.SeenComplete(look.look, slices.Collect(maps.Values(host.vms)), slices.Clone(host.exits), 0)
			m.complete[look.look.ID] = true
		case "partial":
			obs = fleet.SeenPartial(look.look, "adopting")
		}
		look.listed = &obs
	default:
		delete(m.looks, host.id)
		m.plan(host, *look.listed, m.revision)
	}
}

func (m *model) plan(host *modelHost, obs fleet.Observation, heard uint64) {
	// The memory of before is compared afterwards: a plan changes nothing.
	before := fmt.Sprint(m.memory)
	in := reconcile.Input{
		FleetID: "F", Observations: map[string]fleet.Observation{host.id: obs},
		Heard: map[string]uint64{host.id: heard}, Revision: m.revision,
		VMs: slices.Collect(maps.Values(m.rows)), Memory: m.memory,
	}
	r := reconcile.Plan(in)
	if after := fmt.Sprint(m.memory); before != after {
		m.t.Fatalf("planning changed its input:\n%s\n%s", before, after)
	}
	again := reconcile.Plan(in)
	if !slices.Equal(r.Steps, again.Steps) {
		m.t.Fatalf("two plans of one input differ:\n%v\n%v", r.Steps, again.Steps)
	}
	m.memory = r.Memory
	for _, s := range r.Steps {
		m.check(s)
	}
	m.checkStrikes(host, obs)
	m.pending = append(m.pending, r.Steps...)
}

// check holds what must be true of every step when it is decided.
func (m *model) check(s reconcile.Step) {
	host, row := m.hosts[s.HostID], m.rows[s.UID]
	switch {
	case !m.complete[s.Look]:
		m.t.Fatalf("%v rests on a look that was not complete", s)
	case s.Evidence == "" || s.Rule == "":
		m.t.Fatalf("%v has no evidence", s)
	case s.RowRevision > s.LookRevision:
		m.t.Fatalf("%v judges a row younger than its look", s)
	case s.Kind == reconcile.KindMissing && host.vms[s.UID].Running:
		m.t.Fatalf("%v is about a VM that runs", s)
	case (s.Kind == reconcile.KindOrphan || s.Kind == reconcile.KindDeadLetter) && row != nil:
		m.t.Fatalf("%v is about a VM with a row", s)
	}
}

// checkStrikes holds that a strike does not outlive what it counts.
func (m *model) checkStrikes(host *modelHost, obs fleet.Observation) {
	for key, strike := range m.memory.Strikes {
		if key.HostID != host.id {
			continue
		}
		vms, complete := obs.VMs()
		row := m.rows[key.UID]
		listed := slices.ContainsFunc(vms, func(v fleet.ObservedVM) bool { return v.UID == key.UID && v.Running })
		switch {
		case !complete, listed, row == nil:
			m.t.Fatalf("strike %v of %v outlives its cause", strike, key)
		case row.Revision != strike.RowRevision, row.HostID != key.HostID,
			row.State != fleet.VMStateRunning && row.State != fleet.VMStateDraining:
			m.t.Fatalf("strike %v counts against the row %+v", strike, row)
		}
	}
}

// apply does a step, much later perhaps, as the loop does: it asks the state
// once more, then claims, acts and settles.
func (m *model) apply(s reconcile.Step) {
	row := m.rows[s.UID]
	if _, ok := s.Holds(reconcile.Now{Row: row}); !ok {
		return
	}
	host := m.hosts[s.HostID]
	switch s.Kind {
	case reconcile.KindMissing:
		if host.vms[s.UID].Running {
			m.t.Fatalf("%v destroys a VM that runs and is tracked: %+v", s, row)
		}
		m.destroy(*row)
	case reconcile.KindOrphan:
		if row != nil {
			m.t.Fatalf("%v destroys a tracked VM", s)
		}
		delete(host.vms, s.UID)
	case reconcile.KindRetry, reconcile.KindReap:
		if row.State != fleet.VMStateDestroying {
			m.t.Fatalf("%v destroys what nobody asked to destroy: %+v", s, row)
		}
		m.destroy(*row)
	}
}

// Whatever comes in between, no VM that runs and is tracked is destroyed,
// nothing is decided on a look that failed or is older than the row, and no
// strike outlives its cause.
func TestNothingHealthyIsDestroyed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		for range rapid.IntRange(10, 80).Draw(t, "instants") {
			m.act()
		}
	})
}

// The same model, left alone: with healthy hosts, a few cycles bring state and
// hosts together and then nothing is planned any more. What ran and was tracked
// all along still runs.
func TestPlansReachAFixedPoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		for range rapid.IntRange(0, 60).Draw(t, "instants") {
			m.act()
		}
		healthy := map[string]bool{}
		for uid, row := range m.rows {
			if (row.State == fleet.VMStateRunning || row.State == fleet.VMStateDraining) && m.hosts[row.HostID].vms[uid].Running {
				healthy[uid] = true
			}
			if row.State == fleet.VMStateProvisioning { // what a restart makes of it
				vm := *row
				vm.State = fleet.VMStateDestroying
				m.write(vm)
			}
		}
		m.pending, m.looks, m.memory = nil, map[string]*modelLook{}, reconcile.Memory{}
		for _, h := range m.hosts {
			h.state = "complete"
		}
		quiet := 0
		for cycle := 0; quiet < 3; cycle++ {
			if cycle > 20 {
				t.Fatalf("still planning %v", m.pending)
			}
			m.pending = nil
			for _, id := range []string{"h1", "h2"} {
				for range 3 {
					m.observe(m.hosts[id])
				}
			}
			quiet++
			if len(m.pending) > 0 || len(m.memory.Strikes) > 0 {
				quiet = 0
			}
			for _, s := range m.pending {
				m.apply(s)
			}
		}
		for id, h := range m.hosts {
			for uid := range h.vms {
				if m.rows[uid] == nil {
					t.Errorf("%s is left on %s", uid, id)
				}
			}
		}
		for uid, row := range m.rows {
			if !m.hosts[row.HostID].vms[uid].Running {
				t.Errorf("row %s %s is left without its VM", uid, row.State)
			}
		}
		for uid := range healthy {
			if m.rows[uid] == nil {
				t.Errorf("%s was healthy and is gone", uid)
			}
		}
		if len(m.memory.Strikes)+len(m.memory.Orphans)+len(m.memory.Destroys) > 0 {
			t.Errorf("something is remembered of nothing: %+v", m.memory)
		}
	})
}

// The order that makes an orphan's judgement safe is checked, not assumed: a
// VM that is claimed and booted while a look is under way is on the list and
// not among rows that were read before the answer.
func TestRowsReadDuringALookCondemnNobody(t *testing.T) {
	look := fleet.Look{HostID: "h1", ID: "l1", Revision: 5}
	born := fleet.ObservedVM{ID: "fuse-a", UID: "A", Running: true}
	in := reconcile.Input{
		Observations: map[string]fleet.Observation{"h1": fleet.SeenComplete(look, []fleet.ObservedVM{born}, nil, 0)},
		Heard:        map[string]uint64{"h1": 7}, // 6: A's claim, 7: something else
		Revision:     5,                          // rows read as the look was sent
	}
	if r := reconcile.Plan(in); len(r.Steps) > 0 {
		t.Errorf("rows of revision 5, answer at 7: %v", r.Steps)
	}
	in.Heard = nil
	if r := reconcile.Plan(in); len(r.Steps) > 0 {
		t.Errorf("nobody knows when the answer came: %v", r.Steps)
	}
	// This is the mistake that the check prevents.
	in.Heard = map[string]uint64{"h1": 5}
	if r := reconcile.Plan(in); len(r.Steps) != 1 || r.Steps[0].Kind != reconcile.KindOrphan {
		t.Errorf("the test would not notice: %v", r.Steps)
	}
}

func TestAnObservationOfAnotherHostSaysNothing(t *testing.T) {
	vm := &fleet.VM{ID: "fuse-a", UID: "A", HostID: "h1", State: fleet.VMStateRunning, Revision: 1}
	obs := fleet.SeenComplete(fleet.Look{HostID: "h2", ID: "l", Revision: 9}, nil, []fleet.ExitRecord{{UID: "A"}}, 0)
	r := reconcile.Plan(reconcile.Input{VMs: []*fleet.VM{vm}, Observations: map[string]fleet.Observation{"h1": obs}, Revision: 9})
	if len(r.Steps) > 0 || len(r.Summary.HostsUnseen) != 1 {
		t.Errorf("%+v", r)
	}
}
