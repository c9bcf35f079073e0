package model

import (
	"slices"
	"time"
)

// Trick is what makes a playground a job: it runs to its end once, or as often
// as it is to be tried.
type Trick struct {
	Watch    []string      `json:"watch"`              // services whose ends decide
	Retries  int           `json:"retries,omitempty"`  // further attempts after one that failed
	Backoff  time.Duration `json:"backoff,omitempty"`  // before the first of them, then doubled
	Deadline time.Duration `json:"deadline,omitempty"` // of all attempts together; zero is none
	Keep     time.Duration `json:"keep,omitempty"`     // the record goes that long after the end
	Since    time.Time     `json:"since"`              // when it was asked for
	Schedule string        `json:"schedule,omitempty"` // that asked for it, and the time it was for
	Slot     time.Time     `json:"slot,omitzero"`

	Attempt  int       `json:"attempt"`            // the present one, from 1
	Ending   TrickEnd  `json:"ending,omitempty"`   // why it is being ended, if it is
	Spent    []string  `json:"spent,omitempty"`    // containers of the attempt before
	Cleared  int       `json:"cleared,omitempty"`  // the attempt for which what is before it was taken away
	Attempts []Attempt `json:"attempts,omitempty"` // that have ended, oldest first
}

// TrickEnd is why an attempt ended other than by itself.
type TrickEnd string

// Ends of attempts; empty: its program ended.
const (
	TrickDeadline    TrickEnd = "deadline"
	TrickCancelled   TrickEnd = "cancelled"
	TrickInterrupted TrickEnd = "interrupted" // its host or daemon went down
	TrickNotStarted  TrickEnd = "not_started" // it could not be brought up
	TrickRemoved     TrickEnd = "removed"     // somebody removed its containers
)

// Exit codes of tricks that no program gave, as timeout, docker and shells
// have them.
const (
	CodeDeadline    = 124
	CodeNotStarted  = 125
	CodeCancelled   = 130
	CodeInterrupted = 137
	CodeStillRan    = -1 // of a service that still ran when another one failed
)

// Attempt is one run of a trick that has ended.
type Attempt struct {
	N        int          `json:"n"`
	Code     int          `json:"code"`
	End      TrickEnd     `json:"end,omitempty"`
	Why      string       `json:"why,omitempty"` // for people
	Services []ServiceEnd `json:"services,omitempty"`
	At       time.Time    `json:"at"`
	Logs     LogState     `json:"logs,omitempty"`
	LogTries int          `json:"log_tries,omitempty"`
}

// ServiceEnd is how one watched service ended.
type ServiceEnd struct {
	Name string `json:"name"`
	Code int    `json:"code"`
}

// LogState is whether what an attempt wrote was brought in.
type LogState string

// States of logs.
const (
	LogsOwed LogState = ""
	LogsKept LogState = "kept"
	LogsLost LogState = "lost" // nothing to read, or it could not be read
)

// Bounds of tricks.
const (
	MaxRetries  = 10
	MaxDeadline = 7 * 24 * time.Hour
	MaxBackoff  = 24 * time.Hour
	MaxKeep     = 90 * 24 * time.Hour
	// MaxTrickBackoff is where doubling ends.
	MaxTrickBackoff = time.Hour
)

// Open reports whether the present attempt has no end yet.
func (t Trick) Open() bool { return len(t.Attempts) < t.Attempt }

// Last is the attempt that ended last; zero if none has.
func (t Trick) Last() Attempt {
	if len(t.Attempts) == 0 {
		return Attempt{}
	}
	return t.Attempts[len(t.Attempts)-1]
}

// Over is the time at which the deadline passes; zero if there is none.
func (t Trick) Over() time.Time {
	if t.Deadline == 0 {
		return time.Time{}
	}
	return t.Since.Add(t.Deadline)
}

// Late reports whether the deadline has passed.
func (t Trick) Late(now time.Time) bool { return t.Deadline > 0 && !now.Before(t.Over()) }

// Again reports whether an attempt that ended like the last one is followed by
// another, and when.
func (t Trick) Again(now time.Time) (at time.Time, again bool) {
	last := t.Last()
	switch {
	case t.Open() || last.Code == 0 || t.Attempt > t.Retries || t.Late(now):
		return time.Time{}, false
	case last.End == TrickCancelled || last.End == TrickDeadline || t.Ending == TrickCancelled:
		return time.Time{}, false
	}
	at = last.At.Add(Backoff(t.Attempt-1, t.Backoff, max(t.Backoff, MaxTrickBackoff)))
	return at, t.Deadline == 0 || at.Before(t.Over())
}

// Done reports whether nothing more is to come of it.
func (t Trick) Done(now time.Time) bool {
	_, again := t.Again(now)
	return !t.Open() && !again
}

// Closed returns the trick with an end of its present attempt.
func (t Trick) Closed(a Attempt) Trick {
	a.N = t.Attempt
	t.Attempts = append(slices.Clone(t.Attempts), a)
	return t
}

// Next returns the trick with a further attempt begun. The containers of the
// one before say nothing about it.
func (t Trick) Next(spent []string) Trick {
	t.Attempt++
	t.Spent = slices.Clone(spent)
	return t
}
