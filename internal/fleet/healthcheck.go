package fleet

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Bounds of a healthcheck.
const (
	maxProbeWords   = 256
	maxProbeBytes   = 16 << 10
	maxProbePath    = 4096
	maxProbeSeconds = 24 * 60 * 60
	maxProbeRetries = 1000
)

// Validate checks a probe as a caller asks for it; nil is none. What is left out
// stays out, for the guest to decide.
func (h *HealthcheckSpec) Validate() error {
	if h == nil {
		return nil
	}
	const field = "healthcheck"
	if (h.HTTP != nil) == (len(h.Exec) > 0) {
		return Invalid(field, "one of http and exec", "name the port and path to ask, or the command to run", "needs one of http and exec")
	}
	if h.HTTP != nil {
		if h.HTTP.Port < 1 || h.HTTP.Port > 65535 {
			return Invalid(field+".http.port", "1 to 65535", "name the port that the service listens on in the guest", "is %d", h.HTTP.Port)
		}
		if p := h.HTTP.Path; p != "" && (!strings.HasPrefix(p, "/") || len(p) > maxProbePath || strings.ContainsFunc(p, func(r rune) bool { return r <= ' ' || r > '~' })) {
			return Invalid(field+".http.path", "a path of printable ASCII that begins with /", "leave it out for /", "%.80q is not allowed", p)
		}
	}
	if err := checkProbeCommand(h.Exec); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		v    int64
		most int64
	}{
		{"interval_seconds", h.IntervalSeconds, maxProbeSeconds}, {"timeout_seconds", h.TimeoutSeconds, maxProbeSeconds},
		{"start_period_seconds", h.StartPeriodSeconds, maxProbeSeconds}, {"retries", int64(h.Retries), maxProbeRetries},
	} {
		if f.v < 0 || f.v > f.most {
			return Invalid(field+"."+f.name, fmt.Sprintf("0 to %d", f.most), "leave it out for the guest's default", "is %d", f.v)
		}
	}
	if h.IntervalSeconds > 0 && h.TimeoutSeconds > h.IntervalSeconds {
		return Invalid(field+".timeout_seconds", "at most the interval", "shorten it, or lengthen interval_seconds", "is %d, the interval %d", h.TimeoutSeconds, h.IntervalSeconds)
	}
	return nil
}

func checkProbeCommand(argv []string) error {
	const field, limit = "healthcheck.exec", "256 words, 16 KiB, none of them blank"
	total := 0
	for _, word := range argv {
		total += len(word)
	}
	switch {
	case len(argv) > maxProbeWords || total > maxProbeBytes:
		return Invalid(field, limit, "put the probe into a script in the guest", "has %d words of %d bytes", len(argv), total)
	case slices.ContainsFunc(argv, func(word string) bool { return strings.TrimSpace(word) == "" || strings.ContainsRune(word, 0) }):
		return Invalid(field, limit, "leave the word out", "has a blank word or a NUL byte")
	}
	return nil
}

// Files are what a guest needs to run the probe: what the caller sent, since the
// guest owns what is left out. There are none without a probe.
func (h *HealthcheckSpec) Files() []GuestFile {
	if h == nil {
		return nil
	}
	doc, err := json.Marshal(h)
	if err != nil {
		panic("fleet: healthcheck: " + err.Error()) // plain fields always encode
	}
	return []GuestFile{{Path: GuestHealthcheckPath, Data: doc, Mode: 0o600}}
}
