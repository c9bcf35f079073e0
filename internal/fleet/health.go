package fleet

import (
	"encoding/json"
	"strings"
)

// MaxHealthMessage bounds what is kept of a probe's failure, in bytes.
const MaxHealthMessage = 512

// Known reports whether s is a verdict that this program knows.
func (s HealthState) Known() bool {
	return s == HealthStarting || s == HealthPassing || s == HealthFailing
}

// Sound is h as it may be passed on: guests write it, and who owns a guest can
// make it say anything. It is nil for what is no verdict.
func (h *HealthStatus) Sound() *HealthStatus {
	if h == nil || !h.State.Known() {
		return nil
	}
	out := *h
	out.Failures, out.Since = max(0, h.Failures), h.Since.UTC()
	out.Message = strings.ToValidUTF8(h.Message[:min(len(h.Message), MaxHealthMessage)], "")
	return &out
}

// ParseHealth reads a verdict as a guest keeps it; nil for what is none.
func ParseHealth(data []byte) *HealthStatus {
	var h HealthStatus
	if err := json.Unmarshal(data, &h); err != nil {
		return nil
	}
	return h.Sound()
}
