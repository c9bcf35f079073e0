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
	// Busy are lives that an earlier step is still working on.
	Busy   map[string]bool
	Limits Limits
	Memory Memory
}

// Limits bound the passes; zero values mean the defaults.
type Limits struct {
	// OrphanTries is how often an orphan is destroyed before it is given up
	// (seed: OrphanDestroyMaxRetries). Default 5.
	OrphanTries int
	// BackoffCycles caps the wait between retries of a destroy. Default 16.
	BackoffCycles int
}

// Defaults of Limits.
const (
	DefaultOrphanTries   = 5
	DefaultBackoffCycles = 16
)

// strikesNeeded is how many complete looks in a row must not list a VM before
// it counts as missing (one more than in the seed).
const strikesNeeded = 2

// Result is what a plan decided. Steps are in the order of the passes.
type Result struct {
	Steps   []Step
	Memory  Memory
	Summary Summary
}

// passes run in this order on every plan.
var passes = []struct {
	name string
	run  func(*plan)
}{
	{"list", (*plan).list},
	{"missing", (*plan).missing},
	{"orphans", (*plan).orphans},
	{"destroys", (*plan).destroys},
	{"reap", (*plan).reap},
	{"purge", (*plan).purge},
}

// Plan decides what follows from the looks.
func Plan(in Input) Result {
	if in.Limits.OrphanTries <= 0 {
		in.Limits.OrphanTries = DefaultOrphanTries
	}
	if in.Limits.BackoffCycles <= 0 {
		in.Limits.BackoffCycles = DefaultBackoffCycles
	}
	p := newPlan(in)
	for _, pass := range passes {
		pass.run(p)
	}
	return Result{Steps: p.steps, Memory: p.next, Summary: p.sum}
}

// plan is one run of the passes.
type plan struct {
	in    Input
	views []view
	rows  map[string]*fleet.VM // by uid
	next  Memory
	steps []Step
	sum   Summary
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
	p := &plan{in: in, rows: make(map[string]*fleet.VM, len(in.VMs)), next: in.Memory.without(in.Observations, in.Fleet)}
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

func (p *plan) add(v view, s Step) {
	s.HostID, s.Look, s.LookRevision = v.host, v.obs.ID, v.obs.Revision
	p.steps = append(p.steps, s)
}
