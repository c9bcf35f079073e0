package branch

import (
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/records"
)

// Heard is what the repository's server last said of a branch.
type Heard struct {
	At       time.Time
	Head     string // empty: nothing yet, or gone
	Gone     bool
	Failures int // in a row
	Why      string

	began time.Time // when that was asked
	asked bool      // somebody waits for the answer
	slow  bool      // the last failure took its time
}

// Numbers of following.
const (
	askEvery   = 2 * time.Minute
	askMax     = 30 * time.Minute
	againAfter = 5 * time.Minute // after a fetch that failed
	tellAfter  = 3               // failures to ask
)

// Due is when a server is to be asked again.
func (h Heard) Due() time.Time { return h.At.Add(model.Backoff(h.Failures, askEvery, askMax)) }

// Sight is what a decision about a branch depends on.
type Sight struct {
	Now     time.Time
	Row     records.Playground
	Heard   Heard
	Dirt    observe.Dirt
	DirtWhy string
	Present bool // its checkout was seen
	Policy  model.Policy
}

// Follow is what is done about a branch. Advance and a problem exclude each other.
type Follow struct {
	Advance bool // the checkout goes forward and the definition is read
	Problem records.Problem
	Why     string
	Keep    bool // nothing changes, a problem that was noted stands
}

// Decide says what to do about the branch of one playground after a look.
func Decide(s Sight) Follow {
	src := s.Row.Source
	head := s.Heard.Head
	cooled := s.Row.LastRollout == nil || s.Now.Sub(s.Row.LastRollout.At) >= s.Policy.RolloutCooldown
	switch {
	case s.Row.Intent != model.IntentUp || s.Row.State != model.StateRunning && s.Row.State != model.StateError:
		return Follow{Keep: true}
	case s.Heard.Gone:
		return Follow{Problem: records.ProblemGone, Why: "branch " + src.Branch + " is not at its server any more; what runs goes on"}
	case s.Heard.Failures >= tellAfter:
		return Follow{Problem: records.ProblemAsk, Why: s.Heard.Why}
	case head == "":
		return Follow{Keep: true}
	case s.Present && s.Dirt != observe.Clean && (head != src.Head || src.Commit != src.Head):
		return Follow{Problem: records.ProblemWork, Why: s.DirtWhy}
	case s.Present && head == src.Head && (src.Commit == src.Head || src.Refused == src.Head):
		if src.Refused == src.Head && src.Commit != src.Head {
			return Follow{Keep: true}
		}
		return Follow{}
	case s.Present && head == src.Head && !cooled:
		return Follow{Keep: true}
	case head == src.Remote && !src.Force && (src.Problem == records.ProblemForced || src.Problem == records.ProblemElsewhere && s.Now.Sub(src.ProblemAt) < againAfter):
		return Follow{Keep: true}
	case head == src.Remote && src.Problem == records.ProblemFetch && s.Now.Sub(src.ProblemAt) < againAfter:
		return Follow{Keep: true}
	case s.Row.State == model.StateError && src.Commit == src.Head && head == src.Head:
		return Follow{Keep: true}
	}
	return Follow{Advance: true, Why: fmt.Sprintf("%.12s, the branch is at %.12s", or(src.Head, "nothing"), head)}
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
