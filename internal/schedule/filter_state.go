package schedule

import "github.com/fusevm/fuse/internal/fleet"

// byState refuses hosts that an operator took out of service.
func byState(_ *Input, h *fleet.Host, why *Refusal) bool {
	if h.State == fleet.HostActive {
		return true
	}
	if why != nil {
		why.Want, why.Have = string(fleet.HostActive), orNone(string(h.State))
	}
	return false
}
