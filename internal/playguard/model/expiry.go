package model

import (
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Expiry is when a playground ends by itself, and what people were told of it.
// Only our own clock counts: a host's may be off.
type Expiry struct {
	At       time.Time     `json:"at,omitzero"`     // zero: never
	SetAt    time.Time     `json:"set_at,omitzero"` // when somebody said so
	Warned   time.Duration `json:"warned,omitempty"`
	WarnedAt time.Time     `json:"warned_at,omitzero"`
}

// Bounds of a life.
const (
	MinLife = time.Minute
	MaxLife = 5 * 365 * 24 * time.Hour
)

// IsZero reports whether there is no end to it.
func (e Expiry) IsZero() bool { return e.At.IsZero() }

// Until returns an expiry that was just set.
func Until(at, now time.Time) Expiry { return Expiry{At: at, SetAt: now} }

// Extended moves the end on, counted from the present end or from now,
// whichever is later. What never ends stays so. Warnings begin anew.
func (e Expiry) Extended(by time.Duration, now time.Time) Expiry {
	if e.IsZero() {
		return e
	}
	from := e.At
	if now.After(from) {
		from = now
	}
	return Until(from.Add(by), now)
}

// Warning is the warning that is owed now: how long before the end it is meant
// for. Of several that are due the last one is given, and each only once; one
// that is longer than the whole life is left out, except the last.
func (e Expiry) Warning(now time.Time, p Policy) (lead time.Duration, owed bool) {
	if e.IsZero() {
		return 0, false
	}
	for _, lead := range []time.Duration{p.ExpiryLastWarning, p.ExpiryFirstWarning} {
		if now.Before(e.At.Add(-lead)) || lead != p.ExpiryLastWarning && e.At.Sub(e.SetAt) <= lead {
			continue
		}
		return lead, e.Warned == 0 || lead < e.Warned
	}
	return 0, false
}

// Due reports whether the end has come: the time is over, and the last warning
// was given long enough ago. A server that was away over the end warns first.
func (e Expiry) Due(now time.Time, p Policy) bool {
	if e.IsZero() || now.Before(e.At) || e.Warned == 0 || e.Warned > p.ExpiryLastWarning {
		return false
	}
	return now.Sub(e.WarnedAt) >= e.grace(p)
}

// grace is the time between the last warning and the end: at most half of what
// the playground was given to live.
func (e Expiry) grace(p Policy) time.Duration {
	return min(p.ExpiryGrace, max(e.At.Sub(e.SetAt)/2, 0))
}

// Ends is the earliest time at which it may go.
func (e Expiry) Ends(p Policy) time.Time {
	if at := e.WarnedAt.Add(e.grace(p)); !e.WarnedAt.IsZero() && e.Warned <= p.ExpiryLastWarning && at.After(e.At) {
		return at
	}
	return e.At
}

// Never is how people say that a playground does not end by itself.
const Never = "never"

// ParseExpiry reads an end as people give it: how long from now, such as 72h or
// 3d, a time in RFC 3339 form, or never.
func ParseExpiry(text string, now time.Time) (Expiry, error) {
	if text == Never {
		return Expiry{}, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		life, err := ParseLife(text)
		if err != nil {
			return Expiry{}, err
		}
		at = now.Add(life)
	}
	if left := at.Sub(now); left < MinLife || left > MaxLife {
		return Expiry{}, badLife("%.40q ends it in %s", text, left.Round(time.Second))
	}
	return Until(at.UTC(), now), nil
}

// ParseLife reads a duration of Go's form, or whole days, such as 3d.
func ParseLife(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, badLife("%.40q is none", text)
	}
	return d, nil
}

func badLife(format string, args ...any) error {
	return fleet.Invalid("expires", "1 minute to 5 years from now", "give a duration such as 72h or 3d, a time such as 2026-06-01T18:00:00Z, or never", format, args...)
}
