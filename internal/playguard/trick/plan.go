package trick

import (
	"slices"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
)

// Concurrency is what a schedule does while a trick of it still runs.
type Concurrency string

// Concurrency policies, as Kubernetes has them.
const (
	Forbid  Concurrency = "forbid"  // the new one waits, and starts if it is not too late then
	Replace Concurrency = "replace" // the old one is cancelled
	Allow   Concurrency = "allow"
)

// Timing is when a schedule starts tricks.
type Timing struct {
	Cron string `json:"cron"`           // five fields, or @daily and its like
	Zone string `json:"zone,omitempty"` // of the IANA database; empty is UTC
	// StartWithin is how late a run may begin; zero: however late.
	StartWithin time.Duration `json:"start_within,omitempty"`
	Concurrency Concurrency   `json:"concurrency"`
	// KeepDone and KeepFailed are how many finished tricks are kept.
	KeepDone   int `json:"keep_done"`
	KeepFailed int `json:"keep_failed"`
}

// Bounds and defaults of schedules.
const (
	MaxHistory        = 100
	DefaultKeepDone   = 3
	DefaultKeepFailed = 1
	minStartWithin    = 10 * time.Second
	maxStartWithin    = 30 * 24 * time.Hour
	// mostMissed bounds the walk over runs that were missed.
	mostMissed = 10_000
)

// Check reports what is wrong with a timing.
func (t Timing) Check() error {
	if _, err := t.schedule(); err != nil {
		return err
	}
	switch {
	case t.StartWithin != 0 && (t.StartWithin < minStartWithin || t.StartWithin > maxStartWithin):
		return fleet.Invalid("start_within", minStartWithin.String()+" to "+maxStartWithin.String(), "leave it out for however late", "is %s", t.StartWithin)
	case t.Concurrency != Forbid && t.Concurrency != Replace && t.Concurrency != Allow:
		return fleet.Invalid("concurrency", "forbid, replace or allow", "leave it out for forbid", "is %.40q", t.Concurrency)
	case t.KeepDone < 0 || t.KeepDone > MaxHistory || t.KeepFailed < 0 || t.KeepFailed > MaxHistory:
		return fleet.Invalid("keep_done", "0 to 100", "", "or keep_failed is out of range: %d, %d", t.KeepDone, t.KeepFailed)
	}
	return nil
}

func (t Timing) schedule() (cron.Schedule, error) {
	if strings.Contains(t.Cron, "TZ=") {
		return nil, fleet.Invalid("cron", "five fields", "give the time zone in its own field", "must not name a time zone")
	}
	if strings.HasPrefix(t.Cron, "@every") {
		return nil, fleet.Invalid("cron", "five fields, or @hourly, @daily, @weekly, @monthly, @yearly", "write */10 * * * * for every ten minutes",
			"cannot be @every, which has no times of its own")
	}
	zone, err := time.LoadLocation(t.Zone)
	if err != nil || t.Zone == "Local" {
		return nil, fleet.Invalid("time_zone", "a name such as Europe/Berlin", "leave it out for UTC", "%.60q is not known", t.Zone)
	}
	s, err := cron.ParseStandard(t.Cron)
	if err != nil {
		return nil, fleet.Invalid("cron", "minute hour day month weekday, such as 30 4 * * 1-5", "correct it", "%.80q: %s", t.Cron, err)
	}
	if spec, ok := s.(*cron.SpecSchedule); ok {
		spec.Location = zone
	}
	return s, nil
}

// Run is a trick of a schedule.
type Run struct {
	ID     model.PlaygroundID
	Slot   time.Time
	Over   bool
	Failed bool
}

// Facts are what a schedule's next step depends on.
type Facts struct {
	Now    time.Time
	Timing Timing
	Paused bool
	Held   bool      // nobody can act for its owner any more
	Last   time.Time // the last run that was begun, skipped for good or missed; else when the schedule was made
	Runs   []Run
}

// Plan is what to do about a schedule.
type Plan struct {
	Fire    time.Time            // the run to begin; zero: none
	Cancel  []model.PlaygroundID // before that
	Waits   time.Time            // the run that waits for the one before; zero: none
	Missed  int                  // runs that are not made up for
	Until   time.Time            // the last of them
	Remove  []model.PlaygroundID // more history than is kept
	Next    time.Time            // when to ask again
	Invalid error                // it cannot be read any more
	Held    bool                 // as in Facts
}

// Decide says what a schedule is to do now. Of several runs that are due only
// the last is begun, and none that is later than it may be.
func Decide(f Facts) (p Plan) {
	s, err := f.Timing.schedule()
	if err != nil {
		return Plan{Invalid: err}
	}
	p.Remove, p.Held = history(f), f.Held
	if f.Paused || f.Held {
		return p
	}
	due, n := last(s, f.Last, f.Now)
	p.Next = s.Next(f.Now)
	if n == 0 {
		return p
	}
	if f.Timing.StartWithin > 0 && f.Now.Sub(due) > f.Timing.StartWithin {
		p.Missed, p.Until = n, due
		return p
	}
	var active []model.PlaygroundID
	for _, r := range f.Runs {
		if !r.Over {
			active = append(active, r.ID)
		}
	}
	slices.Sort(active)
	p.Missed = n - 1
	switch {
	case len(active) > 0 && f.Timing.Concurrency == Forbid:
		p.Waits = due
		return p
	case f.Timing.Concurrency == Replace:
		p.Cancel = active
	}
	p.Fire = due
	return p
}

// last returns the last time that is due, and how many are, up to a bound.
func last(s cron.Schedule, after, now time.Time) (due time.Time, n int) {
	for next := s.Next(after); !next.IsZero() && !next.After(now); next = s.Next(next) {
		if due, n = next, n+1; n == mostMissed { // go on close to now
			if near := now.Add(-25 * time.Hour); near.After(next) {
				next = near
			}
		}
		if n > 2*mostMissed {
			break
		}
	}
	return due, n
}

// history is what is kept no longer: of each kind the oldest.
func history(f Facts) (out []model.PlaygroundID) {
	runs := slices.Clone(f.Runs)
	slices.SortFunc(runs, func(a, b Run) int { return b.Slot.Compare(a.Slot) })
	left := map[bool]int{false: f.Timing.KeepDone, true: f.Timing.KeepFailed}
	for _, r := range runs {
		if !r.Over {
			continue
		}
		if left[r.Failed]--; left[r.Failed] < 0 {
			out = append(out, r.ID)
		}
	}
	return out
}
