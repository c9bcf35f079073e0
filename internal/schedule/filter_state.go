package schedule

import "github.com/fusevm/fuse/internal/fleet"

// byState refuses hosts that an operator took out of service.
func byState(_ *Input, h *fleet.Host) *Refusal {
	if h.State == fleet.HostActive {
		return nil
	}
	return &Refusal{Want: string(fleet.HostActive), Have: orNone(string(h.State))}
}
