package model

import (
	"slices"
	"time"
)

// Strikes count complete looks that showed the same worsening. One look never
// suffices for a mutation.
type Strikes struct {
	Kind  string    `json:"kind"`
	Count int       `json:"count"`
	Since time.Time `json:"since,omitzero"` // the first
	Last  time.Time `json:"last,omitzero"`  // the last that counted
}

// Add counts a look at the given time. A look closer than gap to the last that
// counted adds nothing; another kind, a look from before, or strikes older
// than memory begin anew.
func (s Strikes) Add(kind string, at time.Time, gap, memory time.Duration) Strikes {
	if s.Kind != kind || s.Count == 0 || at.Before(s.Last) || at.Sub(s.Last) > memory {
		return Strikes{Kind: kind, Count: 1, Since: at, Last: at}
	}
	if at.Sub(s.Last) < gap {
		return s
	}
	s.Count++
	s.Last = at
	return s
}

// Equal compares strikes; times by what they tell.
func (s Strikes) Equal(o Strikes) bool {
	return s.Kind == o.Kind && s.Count == o.Count && s.Since.Equal(o.Since) && s.Last.Equal(o.Last)
}

// maxTries is more than any budget allows in its window.
const maxTries = 16

// Tries are the times at which something bounded was done, oldest first. They
// are kept in the store, so that a restart does not refill a budget.
type Tries []time.Time

// Within counts the tries of the last window. A try that lies in the future
// counts: a clock that stepped back does not refill a budget.
func (t Tries) Within(now time.Time, window time.Duration) int {
	n := 0
	for _, at := range t {
		if now.Sub(at) < window {
			n++
		}
	}
	return n
}

// Last returns the latest try; zero if there is none.
func (t Tries) Last() time.Time {
	if len(t) == 0 {
		return time.Time{}
	}
	return t[len(t)-1]
}

// Add returns the tries with one more; only the latest 16 are kept.
func (t Tries) Add(at time.Time) Tries {
	t = append(slices.Clone(t), at)
	return t[max(0, len(t)-maxTries):]
}
