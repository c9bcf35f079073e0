package schedule

import "github.com/fusevm/fuse/internal/fleet"

// byPin keeps the one host that the caller named and, apart from it, the one
// that holds the seed the VM boots from. Both pins must agree: a pin is one
// more gate, never an override.
func byPin(in *Input, h *fleet.Host) *Refusal {
	for _, pin := range pins(in.Spec) {
		if pin != h.ID {
			return &Refusal{Want: pin, Have: h.ID}
		}
	}
	return nil
}

func pins(spec fleet.Spec) []string {
	var all []string
	for _, pin := range []string{spec.HostID, spec.PinnedHostID} {
		if pin != "" {
			all = append(all, pin)
		}
	}
	return all
}
