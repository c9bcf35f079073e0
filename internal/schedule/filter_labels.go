package schedule

import "github.com/fusevm/fuse/internal/fleet"

// byLabels wants every pair of the spec on the host and names the first, by
// key, that is not there.
func byLabels(in *Input, h *fleet.Host, why *Refusal) bool {
	missing := ""
	for key, want := range in.Spec.Labels {
		if have, there := h.Labels[key]; there && have == want {
			continue
		}
		if why == nil {
			return false
		}
		if missing == "" || key < missing {
			missing = key
		}
	}
	if missing == "" {
		return true
	}
	why.Want = missing + "=" + in.Spec.Labels[missing]
	if have, there := h.Labels[missing]; there {
		why.Have = missing + "=" + have
	}
	return false
}
