package schedule

import (
	"fmt"
	"strings"
)

// Refusal is why one host was not considered. Want and Have are the two sides
// of the comparison that failed; a refusal for size lists every shortage.
type Refusal struct {
	HostID string
	Gate   Gate
	Want   string
	Have   string
	Short  []Shortage
}

// Shortage is one resource of which a host has too little.
type Shortage struct {
	Resource Resource
	Need     int // of one VM, its overhead included
	Free     int
	Total    int
	Overhead int // part of Need that is not the guest's own
}

// Resource names what can run out.
type Resource string

// Resources. A GPU resource also names its kind or profile, e.g.
// "gpus of kind a100".
const (
	ResourceCPUs    Resource = "cpus"
	ResourceRAM     Resource = "MB of memory"
	ResourceStorage Resource = "GB of disk"
	// ResourceHugePages is of 2 MiB each.
	ResourceHugePages Resource = "free huge pages"
	ResourceVMs       Resource = "VM slots"
)

func (s Shortage) String() string {
	text := fmt.Sprintf("%d %s needed, %d of %d free", s.Need, s.Resource, max(s.Free, 0), s.Total)
	if s.Overhead > 0 {
		text += fmt.Sprintf(" (%d of the need is the VM process's own)", s.Overhead)
	}
	return text
}

// String completes the sentence "host x …", for people.
func (r Refusal) String() string {
	switch r.Gate {
	case GatePin:
		return fmt.Sprintf("is not host %s, to which the environment is pinned", r.Want)
	case GateState:
		return "is " + r.Have
	case GateReachable:
		return "cannot be used now: " + r.Have
	case GateAsked:
		return "refused to make it: " + r.Have
	case GateRegion:
		return fmt.Sprintf("is in region %s, not %s", orNone(r.Have), r.Want)
	case GateArch:
		return fmt.Sprintf("has architecture %s, not %s", r.Have, r.Want)
	case GateGPUBackend:
		return fmt.Sprintf("has backend %s, and only %s serves GPUs", r.Have, r.Want)
	case GateCapability:
		return "cannot do " + r.Want
	case GateLabels:
		if r.Have == "" {
			return "lacks label " + r.Want
		}
		return fmt.Sprintf("has label %s, not %s", r.Have, r.Want)
	}
	short := make([]string, len(r.Short))
	for i, s := range r.Short {
		short[i] = s.String()
	}
	return "lacks room: " + strings.Join(short, "; ")
}

func orNone(s string) string {
	if s == "" {
		return "unset"
	}
	return s
}
