package converge

import (
	"time"

	"github.com/fusevm/fuse/internal/reconcile"
)

// clock measures the time between cycles twice: with the wall clock, which an
// operator or a time server may move, and with the monotonic one.
type clock struct {
	wall  func() time.Time // time.Now; tests move it
	began time.Time        // when the loop did, monotonic
	last  struct {
		mono time.Time // carries the monotonic reading
		wall time.Time // does not
	}
}

// lap ends a lap and begins the next; the first has no length.
func (c *clock) lap(lastCommit time.Time) (now time.Time, _ reconcile.Clock) {
	mono, wall := time.Now(), c.wall().Round(0)
	if c.began.IsZero() {
		c.began = mono
	}
	lap := reconcile.Clock{LastCommit: lastCommit, Uptime: mono.Sub(c.began)}
	if !c.last.wall.IsZero() {
		lap.Wall, lap.Monotonic = wall.Sub(c.last.wall), mono.Sub(c.last.mono)
	}
	c.last.mono, c.last.wall = mono, wall
	return wall, lap
}
