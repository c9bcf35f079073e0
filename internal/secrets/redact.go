package secrets

import (
	"cmp"
	"slices"
	"strings"
)

// Redacted stands where a secret stood.
const Redacted = "[REDACTED]"

// minRedact is the shortest value that is taken out: shorter ones ("1", "yes")
// would tear ordinary text apart.
const minRedact = 8

// span is a run of bytes that belong to secrets.
type span struct{ from, to int }

// Redact replaces every value of secrets that has at least 8 bytes in text.
// Values that overlap or touch become one replacement, so that none leaves a
// tail.
func Redact(text string, secrets map[string]string) string {
	var spans []span
	for _, v := range secrets {
		if len(v) >= minRedact {
			spans = append(spans, find(text, v)...)
		}
	}
	if len(spans) == 0 {
		return text
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var out strings.Builder
	end := 0
	for i, s := range spans {
		if i == 0 || s.from > end {
			out.WriteString(text[end:s.from])
			out.WriteString(Redacted)
		}
		end = max(end, s.to)
	}
	out.WriteString(text[end:])
	return out.String()
}

// find returns where value occurs, also where occurrences overlap.
func find(text, value string) (spans []span) {
	for from := 0; ; {
		i := strings.Index(text[from:], value)
		if i < 0 {
			return spans
		}
		spans = append(spans, span{from + i, from + i + len(value)})
		from += i + 1
	}
}
