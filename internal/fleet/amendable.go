package fleet

import "time"

// MaxTags is the most tags of an environment.
const MaxTags = 32

// MinIdleTimeout is the shortest idle timeout other than none.
const MinIdleTimeout = time.Minute

// CheckTags holds the caller's own labels to the form of labels.
func CheckTags(tags map[string]string) error {
	return LabelRule{Field: "tags", Noun: "tags", Most: MaxTags, Fewer: "use fewer tags", Remedy: "choose another key or value"}.Check(tags)
}

// CheckLimits holds the limits of a life to what can be kept.
func CheckLimits(s Spec) error {
	if s.MaxRuntime < 0 {
		return Invalid("spec.max_runtime_seconds", "0 or more", "0 means the fleet's default", "is %d", int64(s.MaxRuntime/time.Second))
	}
	if s.IdleTimeout != 0 && s.IdleTimeout < MinIdleTimeout {
		return Invalid("spec.idle_timeout_seconds", "0, or 60 and more", "0 means the fleet's default", "is %d", int64(s.IdleTimeout/time.Second))
	}
	return s.Limits.Check()
}
