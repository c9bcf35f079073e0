package schedule

import (
	"fmt"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// explainBound words the refusal of the one host that has what the VM goes on
// from. Nobody chose that host, so there is no pin to leave out.
func explainBound(in Input, h *fleet.Host, r Refusal) error {
	var what string
	fork := len(in.Spec.Ancestors) > 0
	switch {
	case fork:
		what = "the source's host " + h.ID
	case in.Spec.SeedSnapshotID != "":
		what = fmt.Sprintf("host %s, which alone has snapshot %s,", h.ID, in.Spec.SeedSnapshotID)
	default:
		what = fmt.Sprintf("host %s, which has the memory of the paused environment,", h.ID)
	}
	if r.Gate != GateFit {
		return unavailable(fleet.ErrBoundHostUnschedulable, "%s %s (gate %s)", what, r, r.Gate).
			With(fleet.DetailHostID, h.ID).
			With(fleet.DetailReason, string(r.Gate)).
			With(fleet.DetailScope, "host "+h.ID).
			With(fleet.DetailRemedy, remedies[r.Gate])
	}
	short, state, of := make([]string, len(r.Short)), "is full", r.Short[0].Resource
	for i, s := range r.Short {
		short[i] = s.String()
	}
	if len(short) > 1 {
		of = ""
	}
	remedy := roomAt(h, of, fork)
	if s := r.Short[0]; s.Need > s.Total { // no end of others would make room
		state, remedy = "is too small", fmt.Sprintf("let host %s hand out at least %d %s", h.ID, s.Need, s.Resource)
		if !fork && in.Spec.SeedSnapshotID != "" && s.Total > s.Overhead { // what is paused or forked keeps its size
			remedy = fmt.Sprintf("ask for at most %d %s", s.Total-s.Overhead, s.Resource)
		}
	}
	err := unavailable(fleet.ErrBoundHostUnschedulable, "%s %s: %s", what, state, strings.Join(short, "; ")).
		With(fleet.DetailHostID, h.ID).
		With(fleet.DetailReason, string(r.Gate))
	return sized(err, h.ID, r.Short[0]).With(fleet.DetailRemedy, remedy)
}

// roomAt says how room of one kind, or of several, can be had on one host.
func roomAt(h *fleet.Host, of Resource, fork bool) string {
	remedy := "end an environment of host " + h.ID
	switch of {
	case ResourceRAM:
		remedy = "end or pause an environment of host " + h.ID
	case ResourceCPUs:
		remedy = "end or pause an environment of host " + h.ID +
			fmt.Sprintf(", or raise --cpu-overcommit of its agent (now %g)", max(h.Facts.CPUOvercommit, 1))
	case ResourceVMs:
		remedy += ", or raise --max-vms of its agent"
	}
	if fork {
		remedy += ", or fork fewer at a time (count)"
	}
	return remedy
}
