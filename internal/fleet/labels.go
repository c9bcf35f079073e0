package fleet

import (
	"maps"
	"slices"
	"strconv"
)

// MaxLabels is the most labels of a host, and the most that a spec may require.
const MaxLabels = 64

// LabelRule is what is asked of a set of labels, and what is said to whoever
// breaks it.
type LabelRule struct {
	Field, Noun   string // "spec.labels", "labels"
	Most          int
	Fewer, Remedy string // what to do about too many, and about a wrong one
}

// Check refuses too many labels, and keys and values that are none.
func (r LabelRule) Check(labels map[string]string) error {
	if len(labels) > r.Most {
		return Invalid(r.Field, strconv.Itoa(r.Most)+" "+r.Noun, r.Fewer, "has %d %s", len(labels), r.Noun)
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if !ValidLabel(k) || !ValidLabel(labels[k]) {
			return Invalid(r.Field, "1 to 63 letters, digits, dots, underscores or dashes, with a letter or digit at both ends", r.Remedy,
				"%.80q=%.80q is not allowed", k, labels[k])
		}
	}
	return nil
}
