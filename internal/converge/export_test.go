package converge

import "time"

// SetWall gives a loop another wall clock, before Run.
func (l *Loop) SetWall(wall func() time.Time) { l.clock.wall = wall }
