package schedule

import (
	"cmp"
	"slices"

	"github.com/fusevm/fuse/internal/fleet"
)

// Input is all that a placement depends on. Hosts are read, never changed.
type Input struct {
	Spec  fleet.Spec
	Hosts []*fleet.Host
	// Policy picks among qualified hosts; empty means spread, the seed's
	// default.
	Policy fleet.PlacementPolicy
	Hints  fleet.PlacementHints
	// Unreachable says, by host id, why a host cannot be used right now.
	Unreachable map[string]string
	// Refused says, by host id, why a host that was asked to make this very VM
	// would not.
	Refused map[string]string
}

// Placement is the answer.
type Placement struct {
	Host     *fleet.Host
	Decision fleet.PlacementDecision
	// Refusals, sorted by id, are all of them when no host was left, and the
	// first MaxRefusals otherwise; Explain has them all.
	Refusals []Refusal
	// Refused counts all refusals.
	Refused int
	byGate  [len(gates)]int
}

// RefusedBy counts the refusals by gate, in the order of the gates.
func (p *Placement) RefusedBy() []GateCount {
	var out []GateCount
	for i, n := range p.byGate {
		if n > 0 {
			out = append(out, GateCount{gates[i].name, n})
		}
	}
	return out
}

// MaxRefusals is how many refusals a placement that worked out names.
const MaxRefusals = 5

// Schedule is Place without preferences (seed: Schedule).
func Schedule(spec fleet.Spec, hosts []*fleet.Host, policy fleet.PlacementPolicy) (*fleet.Host, fleet.PlacementDecision, error) {
	return SchedulePreferring(spec, hosts, policy, fleet.PlacementHints{})
}

// SchedulePreferring is Place under the seed's name and shape.
func SchedulePreferring(spec fleet.Spec, hosts []*fleet.Host, policy fleet.PlacementPolicy, hints fleet.PlacementHints) (*fleet.Host, fleet.PlacementDecision, error) {
	p, err := Place(Input{Spec: spec, Hosts: hosts, Policy: policy, Hints: hints})
	return p.Host, p.Decision, err
}

// Place picks the host for a VM. Its errors are *fleet.Error: unavailable
// around ErrNoHosts, ErrNoCapacity, ErrNoLabelMatch or ErrHostPinUnschedulable,
// not_found around ErrHostNotFound for a pin that names no host. Refusals are
// filled in either way. The caller reserves: nothing is changed here.
func Place(in Input) (Placement, error) {
	if err := in.check(); err != nil {
		return Placement{}, err
	}
	var b best
	candidates := 0
	var refused [MaxRefusals]*fleet.Host
	var p Placement
	for _, h := range in.Hosts {
		g := refusedBy(&in, h)
		if g < 0 {
			candidates++
			b.offer(&in, h)
			continue
		}
		p.byGate[g]++
		keepLowest(&refused, h)
	}
	p.Refused = len(in.Hosts) - candidates
	if candidates == 0 {
		p.Refusals = refuseAll(&in)
		return p, explain(in, p.Refusals)
	}
	for _, h := range refused {
		if h != nil {
			p.Refusals = append(p.Refusals, refuse(&in, h, refusedBy(&in, h)))
		}
	}
	p.Host, p.Decision = b.host, decide(&in, &b, candidates)
	return p, nil
}

// check refuses what cannot be placed whatever the hosts are, and brings the
// spec into the form that the gates compare.
func (in *Input) check() error {
	if err := checkPolicy(in.Policy); err != nil {
		return err
	}
	if err := checkSizes(in.Spec); err != nil {
		return err
	}
	if len(in.Hosts) == 0 {
		return noHosts()
	}
	in.Spec.Arch = fleet.NormalizeArch(in.Spec.Arch)
	return nil
}

func decide(in *Input, b *best, candidates int) fleet.PlacementDecision {
	free, need := headroom(b.host), needs(&in.Spec, b.host)
	return fleet.PlacementDecision{
		HostID:          b.host.ID,
		Policy:          cmp.Or(in.Policy, fleet.PlacementSpread),
		Candidates:      candidates,
		HeadroomCPUs:    free.cpus - need.cpus,
		HeadroomRam:     free.ramMB - need.ramMB,
		ArtifactLocal:   b.holders > 0,
		ArtifactHolders: b.holders,
		ImageLocal:      in.Hints.ImageHosts[b.host.ID],
	}
}

// refusedBy is the index of the first gate that refuses a host, -1 for none.
func refusedBy(in *Input, h *fleet.Host) int {
	for i := range gates {
		if !gates[i].passes(in, h, nil) {
			return i
		}
	}
	return -1
}

// refuse words the refusal of a gate that is known to refuse.
func refuse(in *Input, h *fleet.Host, i int) Refusal {
	r := Refusal{HostID: h.ID, Gate: gates[i].name}
	gates[i].passes(in, h, &r)
	return r
}

func refuseAll(in *Input) []Refusal {
	all := make([]Refusal, 0, len(in.Hosts))
	for _, h := range in.Hosts {
		if i := refusedBy(in, h); i >= 0 {
			all = append(all, refuse(in, h, i))
		}
	}
	slices.SortFunc(all, func(a, b Refusal) int { return cmp.Compare(a.HostID, b.HostID) })
	return all
}

// keepLowest keeps the hosts with the lowest ids, in order; nil comes last.
func keepLowest(kept *[MaxRefusals]*fleet.Host, h *fleet.Host) {
	for i, k := range kept {
		if k == nil {
			kept[i] = h
			return
		}
		if h.ID < k.ID {
			kept[i], h = h, k
		}
	}
}

func checkSizes(spec fleet.Spec) error {
	for _, size := range []struct {
		name string
		n    int
	}{
		{"cpus", spec.CPUs}, {"ram_mb", spec.RamMB}, {"storage_gb", spec.StorageGB}, {"gpus", int(spec.GPUs)},
	} {
		if size.n < 0 {
			return fleet.Errorf(fleet.CodeInvalidArgument, "%s cannot be %d", size.name, size.n).
				With(fleet.DetailLimit, "0 or more").
				With(fleet.DetailRemedy, "give a positive size, or leave it out for the default")
		}
	}
	return nil
}
