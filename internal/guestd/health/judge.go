package health

import (
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Judge makes a verdict of tries by the rules of the healthcheck, for whoever
// makes the tries itself.
type Judge struct{ m *machine }

// NewJudge begins at starting.
func NewJudge(spec fleet.HealthcheckSpec, now time.Time) Judge { return Judge{newMachine(spec, now)} }

// Times are how often to try and how long a try may take.
func (j Judge) Times() (interval, timeout time.Duration) { return j.m.interval, j.m.timeout }

// Verdict is the last one.
func (j Judge) Verdict() fleet.HealthStatus { return j.m.status }

// Attempt takes in how one try went; "" is a success.
func (j Judge) Attempt(now time.Time, problem string) fleet.HealthStatus {
	return j.m.attempt(now, problem)
}
