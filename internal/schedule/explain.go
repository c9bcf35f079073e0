package schedule

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

func noHosts() error {
	return unavailable(fleet.ErrNoHosts, "there is no host to run environments on").
		With(fleet.DetailRemedy, "register one with `fuse host register`, or start everything with `fuse dev`")
}

// unavailable makes the error of a placement that may succeed later; the
// sentinel is what callers match, the text is what people read.
func unavailable(sentinel error, format string, args ...any) *fleet.Error {
	return fleet.Wrap(fleet.CodeUnavailable, sentinel, fmt.Sprintf(format, args...))
}

// explain turns the refusals of all hosts into one error that names the limit,
// the usage and a way out.
func explain(in Input, refusals []Refusal) error {
	if pinned(in.Spec) != "" {
		return explainPin(in, refusals)
	}
	last, reached := lastGate(refusals)
	var err *fleet.Error
	switch last {
	case GateFit:
		err = explainFit(reached)
	case GateLabels:
		err = unavailable(fleet.ErrNoLabelMatch, "labels %s match none of %d hosts", labelList(in.Spec.Labels), len(reached)).
			With(fleet.DetailScope, hostsScope(reached)).
			With(fleet.DetailRemedy, "correct placement.labels, or register a host with these labels")
		err = known(err, knownLabels(in, reached))
	case GateRegion:
		err = known(explainGate(last, reached), knownRegions(reached))
	case GateArch:
		err = known(explainGate(last, reached), knownArchs(reached))
	default:
		err = explainGate(last, reached)
	}
	return err.With(fleet.DetailReason, tally(refusals))
}

// lastGate finds the gate at which the last hosts were dropped, and them.
func lastGate(refusals []Refusal) (Gate, []Refusal) {
	for _, g := range slices.Backward(gates[:]) {
		var reached []Refusal
		for _, r := range refusals {
			if r.Gate == g.name {
				reached = append(reached, r)
			}
		}
		if len(reached) > 0 {
			return g.name, reached
		}
	}
	return "", nil
}

func explainPin(in Input, refusals []Refusal) error {
	pin := pinned(in.Spec)
	i := slices.IndexFunc(refusals, func(r Refusal) bool { return r.HostID == pin })
	if i < 0 && in.Spec.HostID == "" {
		return unavailable(fleet.ErrHostNotFound, "host %.80q, which has what it goes on from, is not registered", pin).
			With(fleet.DetailHostID, pin).
			With(fleet.DetailRemedy, "register it again, under the same id and with the data it had")
	}
	if i < 0 {
		return fleet.Wrap(fleet.CodeNotFound, fleet.ErrHostNotFound, fmt.Sprintf("host %.80q, which the environment is pinned to, is not registered", pin)).
			With(fleet.DetailHostID, pin).
			With(fleet.DetailRemedy, "`fuse host ls` shows the hosts there are")
	}
	r := refusals[i]
	if in.Spec.HostID == "" {
		return explainBound(in, hostOf(in.Hosts, pin), r)
	}
	err := unavailable(fleet.ErrHostPinUnschedulable, "pinned host %s %s (gate %s)", r.HostID, r, r.Gate).
		With(fleet.DetailHostID, r.HostID).
		With(fleet.DetailReason, string(r.Gate))
	if r.Gate == GateFit {
		return sized(err, r.HostID, r.Short[0])
	}
	return err.
		With(fleet.DetailScope, "host "+r.HostID).
		With(fleet.DetailRemedy, remedies[r.Gate]+", or leave the pin out")
}

func hostOf(hosts []*fleet.Host, id string) *fleet.Host {
	return hosts[slices.IndexFunc(hosts, func(h *fleet.Host) bool { return h.ID == id })]
}

var remedies = map[Gate]string{
	GatePin:        "give one host only",
	GateState:      "return a host to service with `fuse host uncordon`",
	GateReachable:  "see that the host agent runs, can be reached and accepts this server (`fuse host get`)",
	GateAsked:      "ask for less or try again later; if a host keeps refusing, its declared capacity is more than it has",
	GateRegion:     "ask for a region that has hosts",
	GateArch:       "ask for an architecture that has hosts",
	GateGPUBackend: "register a host with the qemu backend",
	GateCapability: "leave it out, or update the host agents",
	GateLabels:     "ask for labels that the host has",
}

func explainGate(gate Gate, reached []Refusal) *fleet.Error {
	what := map[Gate]string{
		GateState:      "no host is in service",
		GateReachable:  "no host can be used now",
		GateAsked:      "every host that could take it has refused",
		GateRegion:     "no host is in region " + reached[0].Want,
		GateArch:       "no host has architecture " + reached[0].Want,
		GateGPUBackend: "no host serves GPUs",
		GateCapability: "no host can do " + reached[0].Want,
	}[gate]
	return unavailable(fleet.ErrNoCapacity, "%s: host %s %s", what, reached[0].HostID, reached[0]).
		With(fleet.DetailScope, hostsScope(reached)).
		With(fleet.DetailRemedy, remedies[gate]+", or register another host")
}

// explainFit names the resource that is short everywhere, with the host that
// has most of it; when each host lacks something else, the host that lacks
// least.
func explainFit(reached []Refusal) *fleet.Error {
	if id, s, ok := shortEverywhere(reached); ok {
		err := unavailable(fleet.ErrNoCapacity, "no host has room for %s: largest free is %d of %d on host %s",
			amount(s), max(s.Free, 0), s.Total, id)
		return sized(err, id, s)
	}
	r := slices.MinFunc(reached, func(a, b Refusal) int { return len(a.Short) - len(b.Short) })
	err := unavailable(fleet.ErrNoCapacity, "no host has room for all that is asked at once; host %s comes nearest and %s", r.HostID, r)
	return sized(err, r.HostID, r.Short[0])
}

func shortEverywhere(reached []Refusal) (hostID string, _ Shortage, ok bool) {
	for _, candidate := range reached[0].Short {
		best, id, everywhere := candidate, reached[0].HostID, true
		for _, r := range reached[1:] {
			i := slices.IndexFunc(r.Short, func(s Shortage) bool { return s.Resource == candidate.Resource })
			if i < 0 {
				everywhere = false
				break
			}
			if r.Short[i].Free > best.Free {
				best, id = r.Short[i], r.HostID
			}
		}
		if everywhere {
			return id, best, true
		}
	}
	return "", Shortage{}, false
}

func sized(err *fleet.Error, hostID string, s Shortage) *fleet.Error {
	remedy := fmt.Sprintf("ask for less, remove an environment of host %s, or register another host", hostID)
	switch {
	case s.Resource == ResourceVMs:
		remedy = fmt.Sprintf("remove an environment of host %s, raise its --max-vms, or register another host", hostID)
	case s.Need > s.Total && s.Total == 0:
		remedy = "register a host that has it"
	case s.Need > s.Total:
		remedy = fmt.Sprintf("ask for at most %d, or register a larger host", s.Total-s.Overhead)
	}
	return err.
		With(fleet.DetailLimit, fmt.Sprintf("%d %s", s.Total, s.Resource)).
		With(fleet.DetailUsage, fmt.Sprintf("%d %s", s.Total-s.Free, s.Resource)).
		With(fleet.DetailScope, "host "+hostID).
		With(fleet.DetailRemedy, remedy)
}

func amount(s Shortage) string {
	switch {
	case s.Resource == ResourceVMs:
		return "another VM"
	case s.Overhead > 0:
		return fmt.Sprintf("%d %s (%d of it the VM process's own)", s.Need, s.Resource, s.Overhead)
	}
	return fmt.Sprintf("%d %s", s.Need, s.Resource)
}

// tally counts the refusals by gate, in the order of the gates.
func tally(refusals []Refusal) string {
	var parts []string
	for _, c := range count(refusals) {
		parts = append(parts, string(c.Gate)+" refused "+strconv.Itoa(c.Hosts))
	}
	return strings.Join(parts, ", ")
}

func hostsScope(reached []Refusal) string {
	const most = 5
	var ids []string
	for i, r := range reached {
		if i == most {
			ids = append(ids, fmt.Sprintf("and %d more", len(reached)-most))
			break
		}
		ids = append(ids, r.HostID)
	}
	return "host " + strings.Join(ids, ", ")
}

func labelList(labels map[string]string) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, key+"="+labels[key])
	}
	return strings.Join(pairs, ", ")
}
