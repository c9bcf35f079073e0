package schedule

import "github.com/fusevm/fuse/internal/fleet"

// byPin keeps the one host that the caller named and, apart from it, the one
// that holds the seed the VM boots from. Both pins must agree: a pin is one
// more gate, never an override.
func byPin(in *Input, h *fleet.Host, why *Refusal) bool {
	for _, pin := range [...]string{in.Spec.HostID, in.Spec.PinnedHostID} {
		if pin == "" || pin == h.ID {
			continue
		}
		if why != nil {
			why.Want, why.Have = pin, h.ID
		}
		return false
	}
	return true
}

// pinned is the host that a spec has to go to, or empty.
func pinned(spec fleet.Spec) string {
	if spec.HostID != "" {
		return spec.HostID
	}
	return spec.PinnedHostID
}
