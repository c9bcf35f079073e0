package reconcile

import (
	"fmt"
	"time"
)

// MaxClockDrift is how far wall and monotonic clock may part between two
// cycles before nothing is decided by age.
const MaxClockDrift = 5 * time.Second

// Clock is what two clocks say about the time since the last cycle, and when
// the last commit was.
type Clock struct {
	Wall, Monotonic time.Duration
	LastCommit      time.Time
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
