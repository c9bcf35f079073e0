package reconcile_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

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

	uptime time.Duration // what truly passed
	skew   time.Duration // of the wall clock
	lap    struct{ uptime, skew time.Duration }
	truth  map[string]*modelLife // by uid
	paused fleet.Pauses
	limits reconcile.Limits
	ends   map[reconcile.BudgetKey][]time.Duration // when destructions were begun
}

// modelLife is what is true of a life, whatever the clocks show.
type modelLife struct {
	born, used   time.Duration
	open         int
	tasked, held bool
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
		truth: map[string]*modelLife{}, ends: map[reconcile.BudgetKey][]time.Duration{},
		limits: reconcile.Limits{PerCycle: rapid.IntRange(1, 4).Draw(t, "per cycle"), PerHour: rapid.IntRange(1, 8).Draw(t, "per hour"), IdleAfter: time.Hour},
	}
	for _, id := range []string{"h1", "h2"} {
		// Each host has a VM whose owner cannot be read, which is nobody's.
		m.hosts[id] = &modelHost{id: id, state: "complete", vms: map[string]fleet.ObservedVM{"": {ID: "unreadable", Running: true}}}
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
	switch rapid.IntRange(0, 13).Draw(m.t, "host action") {
	case 0, 1:
		m.births++
		uid := fmt.Sprintf("u%d", m.births)
		m.truth[uid] = &modelLife{born: m.uptime, used: m.uptime, tasked: true}
		m.write(fleet.VM{
			ID: "fuse-" + uid, UID: uid, Generation: 1, HostID: host.id, State: fleet.VMStateProvisioning, CreatedAt: m.wall(), UpdatedAt: m.wall(),
			Spec: fleet.Spec{MaxRuntime: time.Duration(rapid.IntRange(0, 4).Draw(m.t, "max runtime")) * time.Hour}, Probed: true,
		})
	case 5, 6:
		m.uptime += time.Duration(rapid.IntRange(1, 100).Draw(m.t, "minutes")) * time.Minute
	case 7:
		if m.skew == m.lap.skew { // once between two cycles
			m.skew += time.Duration(rapid.IntRange(-300, 300).Draw(m.t, "jump")) * time.Minute
		}
	case 8:
		m.pause(host)
	case 9:
		m.use()
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
	in := reconcile.Input{
		FleetID: "F", Observations: map[string]fleet.Observation{host.id: obs},
		Heard: map[string]uint64{host.id: heard}, Revision: m.revision,
		VMs: slices.Collect(maps.Values(m.rows)), Limits: m.limits, Paused: m.paused, Lives: map[string]reconcile.Life{},
		Now: m.wall(), Clock: reconcile.Clock{
			Wall: m.uptime + m.skew - m.lap.uptime - m.lap.skew, Monotonic: m.uptime - m.lap.uptime, Uptime: m.uptime,
		},
	}
	m.lap.uptime, m.lap.skew = m.uptime, m.skew
	m.memory = m.memory.Lapped(in.Now, in.Clock)
	in.Memory = m.memory
	before := fmt.Sprint(m.memory) // a plan changes nothing
	for uid := range m.rows {
		in.Lives[uid] = m.life(uid)
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
	m.checkBudgets(r.Steps)
	m.checkStrikes(host, obs)
	m.pending = append(m.pending, r.Steps...)
}

// check holds what must be true of every step when it is decided.
func (m *model) check(s reconcile.Step) {
	if s.Kind == reconcile.KindBudget {
		return
	}
	host, row := m.hosts[s.HostID], m.rows[s.UID]
	_, paused := m.paused.At(s.HostID)
	truth := m.truth[s.UID]
	switch {
	case s.UID == "":
		m.t.Fatalf("%v is about a VM that is nobody's", s)
	case s.Destroys() && paused:
		m.t.Fatalf("%v is begun while destruction is paused", s)
	case (s.Kind == reconcile.KindStuck || s.Kind == reconcile.KindStuckSuspected) && (!truth.tasked || m.uptime-truth.born < s.Limit):
		m.t.Fatalf("%v: it has truly lived for %s, of a task %v", s, m.uptime-truth.born, truth.tasked)
	case (s.Kind == reconcile.KindIdle || s.Kind == reconcile.KindIdleSuspected) && (truth.open > 0 || m.uptime-truth.used < s.Limit):
		m.t.Fatalf("%v: it was truly used %s ago", s, m.uptime-truth.used)
	case (s.Kind == reconcile.KindStuck || s.Kind == reconcile.KindIdle) && (truth.held || s.Count < 2):
		m.t.Fatalf("%v is held, or seen once", s)
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

// checkBudgets holds that no hour sees more destructions of a pass on a host
// than its budget, and no cycle either.
func (m *model) checkBudgets(steps []reconcile.Step) {
	cycle := map[reconcile.BudgetKey]int{}
	for _, s := range steps {
		if !s.Destroys() {
			continue
		}
		key := reconcile.BudgetKey{HostID: s.HostID, Pass: s.Kind}
		if cycle[key]++; m.limits.PerCycle >= 0 && cycle[key] > m.limits.PerCycle {
			m.t.Fatalf("%v is one too many in this cycle", s)
		}
		m.ends[key] = append(m.ends[key], m.uptime)
		if m.limits.PerHour < 0 {
			continue
		}
		within := 0
		for _, at := range m.ends[key] {
			if at > m.uptime-time.Hour {
				within++
			}
		}
		if within > m.limits.PerHour {
			m.t.Fatalf("%v is the %d. within an hour, of %d", s, within, m.limits.PerHour)
		}
	}
}

// wall is what the wall clock shows.
func (m *model) wall() time.Time { return noon.Add(m.uptime + m.skew) }

func (m *model) life(uid string) reconcile.Life {
	truth := m.truth[uid]
	l := reconcile.Life{Tasked: truth.tasked, Open: truth.open, Quiet: m.uptime - truth.used}
	if truth.held {
		l.Held = "something"
	}
	return l
}

func (m *model) pause(host *modelHost) {
	by := fleet.Pause{Actor: "user:x", At: m.wall()}
	switch rapid.IntRange(0, 2).Draw(m.t, "pause") {
	case 0:
		m.paused = fleet.Pauses{Hosts: map[string]fleet.Pause{host.id: by}}
	case 1:
		m.paused = fleet.Pauses{All: &by}
	default:
		m.paused = fleet.Pauses{}
	}
}

// use begins or ends a use of an environment, ends its task, or holds it.
func (m *model) use() {
	uids := slices.Sorted(maps.Keys(m.rows))
	if len(uids) == 0 {
		return
	}
	truth := m.truth[rapid.SampledFrom(uids).Draw(m.t, "used")]
	switch rapid.IntRange(0, 4).Draw(m.t, "use") {
	case 0:
		truth.open++
		truth.used = m.uptime
	case 1:
		if truth.open > 0 {
			truth.open--
			truth.used = m.uptime
		}
	case 2:
		truth.tasked = false
	case 3:
		truth.held = !truth.held
	case 4:
		truth.used = m.uptime
	}
}

// checkStrikes holds that a strike does not outlive what it counts.
func (m *model) checkStrikes(host *modelHost, obs fleet.Observation) {
	for _, strikes := range []map[reconcile.VMKey]reconcile.Strike{m.memory.Stuck, m.memory.Idle} {
		for key, strike := range strikes {
			if key.HostID != host.id {
				continue
			}
			vms, complete := obs.VMs()
			row := m.rows[key.UID]
			runs := slices.ContainsFunc(vms, func(v fleet.ObservedVM) bool { return v.UID == key.UID && v.Running })
			if !complete || !runs || row == nil || row.State != fleet.VMStateRunning {
				m.t.Fatalf("strike %v of %v outlives its cause", strike, key)
			}
		}
	}
	for key := range m.memory.Stuck {
		if key.HostID == host.id && m.rows[key.UID] != nil && !m.truth[key.UID].tasked {
			m.t.Fatalf("%v has no task and a strike for it", key)
		}
	}
	for key := range m.memory.Idle {
		if truth := m.truth[key.UID]; key.HostID == host.id && (truth.open > 0 || m.uptime-truth.used < time.Hour) {
			m.t.Fatalf("%v is used and has a strike", key)
		}
	}
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
	now := reconcile.Now{Row: row, Paused: m.paused}
	if row != nil {
		now.Life = m.life(s.UID)
	}
	if _, ok := s.Holds(now); !ok {
		return
	}
	if _, paused := m.paused.At(s.HostID); paused && s.Destroys() {
		m.t.Fatalf("%v is applied while destruction is paused", s)
	}
	host := m.hosts[s.HostID]
	switch s.Kind {
	case reconcile.KindStuck, reconcile.KindIdle:
		truth := m.truth[s.UID]
		if row.State != fleet.VMStateRunning || truth.held ||
			s.Kind == reconcile.KindIdle && (truth.open > 0 || m.uptime-truth.used < s.Limit) ||
			s.Kind == reconcile.KindStuck && (!truth.tasked || m.uptime-truth.born < s.Limit) {
			m.t.Fatalf("%v does not hold: %+v %+v", s, row, truth)
		}
		m.destroy(*row)
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
		m.paused, m.limits = fleet.Pauses{}, reconcile.Limits{IdleAfter: time.Hour, PerCycle: 100, PerHour: 1000}
		for uid, row := range m.rows {
			truth := m.truth[uid]
			truth.held, truth.open = false, 0
			ceiling := cmp.Or(row.Spec.MaxRuntime, reconcile.DefaultStuckAfter)
			if m.uptime-truth.used < 30*time.Minute && m.uptime-truth.born < ceiling && (row.State == fleet.VMStateRunning || row.State == fleet.VMStateDraining) && m.hosts[row.HostID].vms[uid].Running {
				healthy[uid] = true
			}
			if row.State == fleet.VMStateProvisioning { // what a restart makes of it
				vm := *row
				vm.State = fleet.VMStateDestroying
				m.write(vm)
			}
		}
		m.pending, m.looks, m.memory = nil, map[string]*modelLook{}, reconcile.Memory{Jumps: m.memory.Jumps}
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
				if uid != "" && m.rows[uid] == nil {
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
		if !m.hosts["h1"].vms[""].Running || !m.hosts["h2"].vms[""].Running {
			t.Errorf("a VM that is nobody's was touched")
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

// settled puts running VMs and orphans on the hosts.
func (m *model) settled(vms, orphans int) {
	for i := range vms + orphans {
		uid, host := fmt.Sprintf("s%d", i), m.hosts[[]string{"h1", "h2"}[i%2]]
		host.vms[uid] = fleet.ObservedVM{ID: "fuse-" + uid, UID: uid, Generation: 1, Running: true}
		if i < vms {
			m.truth[uid] = &modelLife{born: m.uptime, used: m.uptime, tasked: true}
			m.write(fleet.VM{
				ID: "fuse-" + uid, UID: uid, Generation: 1, HostID: host.id, State: fleet.VMStateRunning,
				CreatedAt: m.wall(), UpdatedAt: m.wall(), Spec: fleet.Spec{MaxRuntime: time.Duration(1+i%3) * time.Hour},
			})
		}
	}
}

// cycle lets time pass and looks at both hosts; between deciding and applying
// things may change.
func (m *model) cycle(longest int) {
	m.uptime += time.Duration(rapid.IntRange(1, longest).Draw(m.t, "minutes")) * time.Minute
	for range rapid.IntRange(0, 2).Draw(m.t, "uses") {
		m.use()
	}
	for _, id := range []string{"h1", "h2"} {
		if rapid.IntRange(0, 9).Draw(m.t, "blind") == 0 {
			m.hosts[id].state = "unseen"
		}
		for range 3 {
			m.observe(m.hosts[id])
		}
		m.hosts[id].state = "complete"
	}
	for range rapid.IntRange(0, 2).Draw(m.t, "uses meanwhile") {
		m.use()
	}
	if rapid.IntRange(0, 5).Draw(m.t, "pauses") == 0 {
		m.pause(m.hosts["h1"])
	}
	for _, s := range m.pending {
		m.apply(s)
	}
	m.pending = nil
}

// Whatever is used, held, without a task or younger than its ceiling goes on,
// also when that changes between the decision and the act.
func TestWhatIsUsedOrHeldGoesOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		m.limits.PerCycle, m.limits.PerHour = -1, -1
		m.settled(rapid.IntRange(1, 4).Draw(t, "vms"), 0)
		for range rapid.IntRange(3, 12).Draw(t, "cycles") {
			m.cycle(40)
		}
	})
}

// No hour and no cycle sees more than its budget, however cycles fall.
func TestBudgetsHoldInAnyWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		m.settled(rapid.IntRange(0, 12).Draw(t, "vms"), rapid.IntRange(0, 20).Draw(t, "orphans"))
		for range rapid.IntRange(3, 20).Draw(t, "cycles") {
			m.cycle(25)
		}
	})
}
