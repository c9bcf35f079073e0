package schedule

import (
	"cmp"
	"slices"

	"github.com/fusevm/fuse/internal/fleet"
)

// Explanation is a placement run dry: where a VM would go and what became of
// every other host.
type Explanation struct {
	Placement
	// Candidates passed all gates, the one that is taken first. Every host of
	// the input is either here or in Refusals.
	Candidates []Candidate
	// Err is what a create would be answered; nil if it would be placed.
	Err error
}

// Candidate is a host that passed every gate.
type Candidate struct {
	HostID string
	// Score is what is free there: 10,000 for a CPU and 1 for a MB of memory.
	Score                           int
	FreeCPUs, FreeRamMB, FreeDiskGB int // before the VM
	ArtifactLocal, ImageLocal       bool
}

// GateCount is how many hosts one gate refused.
type GateCount struct {
	Gate  Gate
	Hosts int
}

// Explain runs a placement dry and leaves nothing out.
func Explain(in Input) Explanation {
	p, err := Place(in)
	e := Explanation{Placement: p, Err: err}
	if in.check() != nil {
		return e
	}
	if p.Host != nil {
		e.Refusals = refuseAll(&in)
	}
	var hosts []*fleet.Host
	for _, h := range in.Hosts {
		if refusedBy(&in, h) < 0 {
			hosts = append(hosts, h)
		}
	}
	slices.SortFunc(hosts, func(a, b *fleet.Host) int {
		return cmp.Or(
			-cmp.Compare(truth(in.Hints.ArtifactHosts[a.ID]), truth(in.Hints.ArtifactHosts[b.ID])),
			-cmp.Compare(rank(&in, a), rank(&in, b)), cmp.Compare(a.ID, b.ID))
	})
	for _, h := range hosts {
		free := headroom(h)
		e.Candidates = append(e.Candidates, Candidate{
			HostID: h.ID, Score: score(h), FreeCPUs: free.cpus, FreeRamMB: free.ramMB, FreeDiskGB: free.storageGB,
			ArtifactLocal: in.Hints.ArtifactHosts[h.ID], ImageLocal: in.Hints.ImageHosts[h.ID],
		})
	}
	return e
}

// Gates counts the refusals by gate, in the order of the gates.
func (e *Explanation) Gates() []GateCount { return count(e.Refusals) }

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

func count(refusals []Refusal) []GateCount {
	var out []GateCount
	for _, g := range gates {
		n := 0
		for i := range refusals {
			if refusals[i].Gate == g.name {
				n++
			}
		}
		if n > 0 {
			out = append(out, GateCount{g.name, n})
		}
	}
	return out
}
