package model

import "time"

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
