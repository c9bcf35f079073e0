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
}

// Placement is the answer. Every host of the input is either among the
// Decision.Candidates that passed all gates or in Refusals, sorted by id.
type Placement struct {
	Host     *fleet.Host
	Decision fleet.PlacementDecision
	Refusals []Refusal
}

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
	rank, err := ranking(in.Policy)
	if err != nil {
		return Placement{}, err
	}
	if err := checkSizes(in.Spec); err != nil {
		return Placement{}, err
	}
	if len(in.Hosts) == 0 {
		return Placement{}, noHosts()
	}
	survivors, refusals := sift(in)
	if len(survivors) == 0 {
		return Placement{Refusals: refusals}, explain(in, refusals)
	}
	candidates := len(survivors)
	survivors, local := preferLocal(survivors, in.Hints)
	best := slices.MinFunc(survivors, rank)
	free := headroom(best.Capacity, best.Allocated)
	need := fleet.Demand(in.Spec, best.Facts)
	return Placement{
		Host: best,
		Decision: fleet.PlacementDecision{
			HostID:          best.ID,
			Policy:          cmp.Or(in.Policy, fleet.PlacementSpread),
			Candidates:      candidates,
			HeadroomCPUs:    free.CPUs - need.CPUs,
			HeadroomRam:     free.RamMB - need.RamMB,
			ArtifactLocal:   local > 0,
			ArtifactHolders: local,
		},
		Refusals: refusals,
	}, nil
}

// sift sends each host through the gates in order; the first that refuses it
// is the one that is named.
func sift(in Input) (survivors []*fleet.Host, refusals []Refusal) {
	for _, h := range in.Hosts {
		if r := refuse(&in, h); r != nil {
			refusals = append(refusals, *r)
		} else {
			survivors = append(survivors, h)
		}
	}
	slices.SortFunc(refusals, func(a, b Refusal) int { return cmp.Compare(a.HostID, b.HostID) })
	return survivors, refusals
}

func refuse(in *Input, h *fleet.Host) *Refusal {
	for _, g := range gates {
		if r := g.refuse(in, h); r != nil {
			r.HostID, r.Gate = h.ID, g.name
			return r
		}
	}
	return nil
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
