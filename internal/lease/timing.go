package lease

import (
	"time"

	"golang.org/x/sys/unix"
)

// DefaultPeriod is how long a lease lasts that nobody renews.
const DefaultPeriod = 15 * time.Second

// Timing of a lease. Zero values take the defaults that Normal gives.
type Timing struct {
	Period time.Duration // how long it lasts unless it is renewed
	Renew  time.Duration // how often it is renewed: Period/3
	// Margin is how long before the end of Period the holder stops: it covers
	// clocks that run at different speeds and calls that are on their way.
	Margin time.Duration // Period/10
}

// Normal returns t with its defaults.
func (t Timing) Normal() Timing {
	if t.Period <= 0 {
		t.Period = DefaultPeriod
	}
	if t.Renew <= 0 {
		t.Renew = t.Period / 3
	}
	if t.Margin <= 0 {
		t.Margin = t.Period / 10
	}
	return t
}

// Poll is how often one who waits for a lease looks whether it is free: often
// enough that a lease that was handed over is not left lying about, rarely
// enough that a crowd of servers does not burden the store.
func (t Timing) Poll() time.Duration {
	return min(max(t.Normal().Period/5, 50*time.Millisecond), time.Second)
}

// Instant is a moment on a clock that nobody sets and that also counts while
// the machine sleeps, which Go's own monotonic clock does not.
type Instant struct {
	at   time.Time
	boot time.Duration
}

// Now is this moment.
func Now() Instant { return Instant{at: time.Now(), boot: bootTime()} }

// Elapsed is how much time has passed since i: the longer of the two clocks, of
// which a test in virtual time moves only the first.
func (i Instant) Elapsed() time.Duration {
	return max(time.Since(i.at), bootTime()-i.boot)
}

// bootTime is the time since the machine was started, sleep included.
var bootTime = func() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0 // a kernel without it: the other clock is all there is
	}
	return time.Duration(ts.Nano())
}
