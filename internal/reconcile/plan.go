package reconcile

import (
	"maps"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Input is all that a plan depends on; nothing in it is changed.
type Input struct {
	Now   time.Time
	Clock Clock
	// FleetID is named in evidence; hosts list only VMs of this fleet.
	FleetID string
	// Observations are the looks to judge, by host id. A host that is not in
	// it was not looked at: its memory stays as it is.
	Observations map[string]fleet.Observation
	// Heard is the state's revision read after each look's answer had come.
	Heard map[string]uint64
	// Revision is that of the rows. Rows older than an answer cannot tell an
	// orphan: they must have been read after it.
	Revision uint64
	// VMs are at least all rows on the observed hosts and all rows whose uid an
	// observation lists; with Fleet, also the rows without a host.
	VMs []*fleet.VM
	// Fleet adds what belongs to no host: rows without one, and the purge of
	// what Kept says there is.
	Fleet bool
	Kept  Kept
	// Stored belongs to no host either.
	Stored Stored
	// Lives are what rows do not say about the lives in VMs, by uid.
	Lives map[string]Life
	// Busy are lives and snapshots that an earlier step is still working on.
	Busy map[string]bool
	// Paused is where destruction is stopped.
	Paused fleet.Pauses
	Limits Limits
	Memory Memory
}

// Life is what a row does not say about a running life.
type Life struct {
	Tasked bool // a task is attached that has not ended
	Paused bool // it stands still, on purpose
	// Held is why it must not be ended now by its age or for want of use; "":
	// nothing holds it.
	Held string
	// Open are its uses under way; Quiet is the time since the last one, or
	// since the loop began.
	Open  int
	Quiet time.Duration
}

// strikesNeeded is how many cycles in a row a condition must hold: for missing
// one more than in the seed.
const strikesNeeded = 2

// Result is what a plan decided. Steps are in the order of the passes.
type Result struct {
	Steps []Step
	// Withheld are destructions that have to wait, and why.
	Withheld []Withheld
	Memory   Memory
	Summary  Summary
}

// passes run in this order on every plan.
var passes = []struct {
	name string
	run  func(*plan)
}{
	{"list", (*plan).list},
	{"missing", (*plan).missing},
	{"orphans", (*plan).orphans},
	{"stuck", (*plan).stuck},
	{"idle", (*plan).idle},
	{"health", (*plan).health},
	{"egress", (*plan).egress},
	{"snapshot_gc", (*plan).snapshotGC},
	{"artifact_gc", (*plan).artifactGC},
	{"destroys", (*plan).destroys},
	{"reap", (*plan).reap},
	{"purge", (*plan).purge},
}

// Plan decides what follows from the looks.
func Plan(in Input) Result {
	in.Limits = in.Limits.Effective()
	p := newPlan(in)
	p.openBudgets()
	for _, pass := range passes {
		pass.run(p)
	}
	p.closeBudgets()
	if in.Fleet && p.fault == "" {
		p.next.Collects = kept(p.next.Collects, func(id string) bool { return p.collecting[id] })
	}
	return Result{Steps: p.steps, Withheld: p.withheld, Memory: p.next, Summary: p.sum}
}

// Passes names the passes in their order.
func Passes() []string {
	names := make([]string, len(passes))
	for i, p := range passes {
		names[i] = p.name
	}
	return names
}

// plan is one run of the passes.
type plan struct {
	in    Input
	views []view
	rows  map[string]*fleet.VM // by uid
	next  Memory
	steps []Step
	sum   Summary
	fault string // why nothing is decided by age

	withheld   []Withheld
	begun      map[BudgetKey]int
	waiting    map[BudgetKey]string // by which limit
	collecting map[string]bool      // snapshots whose end is due
	ending     map[string]bool      // lives that this plan ends
}

// view is one host as it was seen beside the rows that say they are on it.
type view struct {
	host     string
	obs      fleet.Observation
	complete bool
	rows     []*fleet.VM // by id
	listed   map[string]fleet.ObservedVM
	exits    map[string]fleet.ExitRecord
}

func newPlan(in Input) *plan {
	p := &plan{
		in: in, rows: make(map[string]*fleet.VM, len(in.VMs)), next: in.Memory.without(in.Observations, in.Fleet),
		fault: in.Clock.fault(in.Now), begun: map[BudgetKey]int{}, waiting: map[BudgetKey]string{}, collecting: map[string]bool{}, ending: map[string]bool{},
	}
	byHost := map[string][]*fleet.VM{}
	for _, vm := range in.VMs {
		p.rows[vm.UID] = vm
		byHost[vm.HostID] = append(byHost[vm.HostID], vm)
	}
	for _, host := range slices.Sorted(maps.Keys(in.Observations)) {
		v := newView(host, in.Observations[host])
		v.rows = byHost[host]
		slices.SortFunc(v.rows, byID)
		p.views = append(p.views, v)
	}
	return p
}

func newView(host string, obs fleet.Observation) view {
	v := view{host: host, obs: obs}
	vms, complete := obs.VMs()
	if !complete || obs.HostID != host {
		return v
	}
	v.complete = true
	v.listed = make(map[string]fleet.ObservedVM, len(vms))
	v.exits = map[string]fleet.ExitRecord{}
	for _, vm := range vms {
		v.listed[vm.UID] = vm
		if vm.Exit != nil {
			v.exits[vm.UID] = *vm.Exit
		}
	}
	exits, _ := obs.Exits()
	for _, e := range exits {
		v.exits[e.UID] = e
	}
	return v
}

// list counts what the hosts report. A host that could not be seen counts with
// what it last listed, and is named.
func (p *plan) list() {
	for _, v := range p.views {
		p.sum.Hosts = append(p.sum.Hosts, HostResult{
			HostID: v.host, Quality: v.obs.Quality(), Reason: v.obs.Reason(), Took: v.obs.Took, Tracked: len(v.rows), Listed: len(v.listed),
		})
		if v.complete {
			p.sum.HostsSeen++
			p.sum.Foreign += v.obs.Foreign
			p.next.Listed[v.host] = len(v.listed)
		} else {
			p.sum.HostsUnseen = append(p.sum.HostsUnseen, v.host)
			if n, known := p.in.Memory.Listed[v.host]; known {
				p.next.Listed[v.host] = n
			}
		}
		p.sum.ProviderVMs += p.next.Listed[v.host]
	}
}

// judged says whether a row may be judged by the look: what settled after the
// look was sent may have happened after the host made its list.
func (v view) judged(vm *fleet.VM) bool { return v.complete && vm.Revision <= v.obs.Revision }

// skip notes that a pass was left out because of the clock, once a cycle.
func (p *plan) skip(pass string) {
	if p.in.Fleet {
		p.sum.Skipped = append(p.sum.Skipped, pass+": "+p.fault)
	}
}

// add plans a step that destroys nothing new.
func (p *plan) add(v view, s Step) {
	s.HostID, s.Look, s.LookRevision = v.host, v.obs.ID, v.obs.Revision
	p.steps = append(p.steps, s)
}
