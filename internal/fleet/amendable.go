package fleet

import (
	"maps"
	"slices"
	"strconv"
	"time"
)

// MaxTags is the most tags of an environment.
const MaxTags = 32

// MinIdleTimeout is the shortest idle timeout other than none.
const MinIdleTimeout = time.Minute

// CheckTags holds the caller's own labels to the form of labels.
func CheckTags(tags map[string]string) error {
	if len(tags) > MaxTags {
		return Invalid("tags", strconv.Itoa(MaxTags)+" tags", "use fewer tags", "has %d tags", len(tags))
	}
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		if !ValidLabel(k) || !ValidLabel(tags[k]) {
			return Invalid("tags", "1 to 63 letters, digits, dots, underscores or dashes, with a letter or digit at both ends",
				"choose another key or value", "%.80q=%.80q is not allowed", k, tags[k])
		}
	}
	return nil
}

// CheckLimits holds the limits of a life to what can be kept.
func CheckLimits(s Spec) error {
	if s.MaxRuntime < 0 {
		return Invalid("spec.max_runtime_seconds", "0 or more", "0 means the fleet's default", "is %d", int64(s.MaxRuntime/time.Second))
	}
	if s.IdleTimeout != 0 && s.IdleTimeout < MinIdleTimeout {
		return Invalid("spec.idle_timeout_seconds", "0, or 60 and more", "0 means the fleet's default", "is %d", int64(s.IdleTimeout/time.Second))
	}
	return nil
}
