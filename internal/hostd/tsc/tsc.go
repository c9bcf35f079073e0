// Package tsc measures how fast this machine's time stamp counter runs, for
// guests that are given that very counter and would otherwise have to measure
// it themselves. Under emulation on a busy host they measure it wrong: a guest
// whose processor was held up in the middle believes in a clock that runs
// twenty times too fast, and each of its timeouts ends too early.
package tsc

import (
	"sync"
	"time"
)

// KHz is the counter's frequency in kHz, 0 where there is none. The first call
// takes a twentieth of a second.
var KHz = sync.OnceValue(func() int { return measure(50 * time.Millisecond) })

// measure counts over a span of time. What is wrong is at most what the two
// samples are off, some hundred nanoseconds together.
func measure(span time.Duration) int {
	if !available {
		return 0
	}
	began, first := sample()
	<-time.After(span)
	ended, last := sample()
	took := ended.Sub(began)
	if last <= first || took <= 0 {
		return 0
	}
	return int(float64(last-first) / took.Seconds() / 1000)
}

// samples is how often the two clocks are read in a row; the closest pair counts,
// since this process may be held up between the two.
const samples = 64

// sample reads the counter and the clock at the same moment.
func sample() (at time.Time, count uint64) {
	closest := time.Duration(1<<63 - 1)
	for range samples {
		before := time.Now()
		c := read()
		if gap := time.Since(before); gap < closest {
			closest, at, count = gap, before.Add(gap/2), c
		}
	}
	return at, count
}
