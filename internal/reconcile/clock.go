package reconcile

import (
	"fmt"
	"slices"
	"time"
)

// MaxClockDrift is how far wall and monotonic clock may part between two
// cycles before nothing is decided by age.
const MaxClockDrift = 5 * time.Second

// maxJumps bounds the leaps that are remembered.
const maxJumps = 64

// Clock is what two clocks say about the time since the last cycle, and when
// the last commit was.
type Clock struct {
	Wall, Monotonic time.Duration
	LastCommit      time.Time
	// Uptime is the monotonic time since the loop began.
	Uptime time.Duration
}

// fault says why ages cannot be trusted now, or "".
func (c Clock) fault(now time.Time) string {
	if drift := c.Wall - c.Monotonic; drift.Abs() > MaxClockDrift {
		return fmt.Sprintf("the wall clock moved by %s while %s passed", c.Wall.Round(time.Millisecond), c.Monotonic.Round(time.Millisecond))
	}
	if now.Before(c.LastCommit) {
		return fmt.Sprintf("the wall clock is %s behind the last commit", c.LastCommit.Sub(now).Round(time.Millisecond))
	}
	return ""
}

// Lapped remembers a leap forward of the wall clock, so that it does not make
// what was there before it older than it is. A leap back makes things younger,
// which harms nobody.
func (m Memory) Lapped(now time.Time, c Clock) Memory {
	if leap := c.Wall - c.Monotonic; leap > MaxClockDrift {
		m.Jumps = append(slices.Clone(m.Jumps), Jump{At: now.Add(-leap), By: leap})
		if over := len(m.Jumps) - maxJumps; over > 0 {
			m.Jumps = m.Jumps[over:]
		}
	}
	return m
}

// age is how long ago t was, by the wall clock less its leaps since. No time
// lies within a leap but one from before the clock was set back: it counts as
// one from before the leap.
func (in *Input) age(t time.Time) time.Duration {
	age := in.Now.Sub(t)
	for _, j := range in.Memory.Jumps {
		if !t.After(j.At.Add(j.By)) {
			age -= j.By
		}
	}
	return age
}

// before is since when things are younger than keep, by the same reckoning.
func (in *Input) before(keep time.Duration) time.Time {
	before := in.Now.Add(-keep)
	for _, j := range slices.Backward(in.Memory.Jumps) {
		if before.After(j.At.Add(j.By)) {
			break
		}
		before = before.Add(-j.By)
	}
	return before
}
