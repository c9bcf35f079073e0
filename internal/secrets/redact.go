package secrets

import (
	"slices"
	"strings"
)

// Redacted stands where a secret stood.
const Redacted = "[REDACTED]"

// minRedact is the shortest value that is taken out: shorter ones ("1", "yes")
// would tear ordinary text apart.
const minRedact = 8

// Redact replaces every value of secrets that has at least 8 bytes in text.
// Longer values go first, so that one that contains another leaves no tail.
func Redact(text string, secrets map[string]string) string {
	var values []string
	for _, v := range secrets {
		if len(v) >= minRedact {
			values = append(values, v)
		}
	}
	if len(values) == 0 {
		return text
	}
	slices.SortFunc(values, func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	pairs := make([]string, 0, 2*len(values))
	for _, v := range slices.Compact(values) {
		pairs = append(pairs, v, Redacted)
	}
	return strings.NewReplacer(pairs...).Replace(text)
}
