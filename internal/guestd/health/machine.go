package health

import (
	"cmp"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Defaults of a probe. The control plane leaves unset what the caller left
// unset: the guest alone decides what that means (seed).
const (
	defaultInterval = 10 * time.Second
	defaultTimeout  = 2 * time.Second
	defaultRetries  = 3
)

// machine is the verdict and what moves it: starting until the first success;
// failures within the start period change only the message; after it as many
// failures in a row as there are retries mean failing; any success resets.
type machine struct {
	interval, timeout time.Duration
	retries           int
	counts            time.Time // when failures begin to count
	status            fleet.HealthStatus
}

func newMachine(spec fleet.HealthcheckSpec, now time.Time) *machine {
	seconds := func(n int64, def time.Duration) time.Duration {
		return cmp.Or(time.Duration(max(0, n))*time.Second, def)
	}
	m := &machine{
		interval: seconds(spec.IntervalSeconds, defaultInterval), timeout: seconds(spec.TimeoutSeconds, defaultTimeout),
		retries: cmp.Or(max(0, spec.Retries), defaultRetries), counts: now.Add(seconds(spec.StartPeriodSeconds, 0)),
		status: fleet.HealthStatus{State: fleet.HealthStarting, Since: now.UTC()},
	}
	m.timeout = min(m.timeout, m.interval)
	return m
}

// attempt takes in how one try went; "" is a success.
func (m *machine) attempt(now time.Time, problem string) fleet.HealthStatus {
	if problem == "" {
		m.enter(now, fleet.HealthPassing)
		m.status.Failures, m.status.Message = 0, ""
		return m.status
	}
	m.status.Message = problem[:min(len(problem), fleet.MaxHealthMessage)]
	if now.Before(m.counts) {
		return m.status
	}
	if m.status.Failures++; m.status.Failures >= m.retries {
		m.enter(now, fleet.HealthFailing)
	}
	return m.status
}

func (m *machine) enter(now time.Time, state fleet.HealthState) {
	if m.status.State != state {
		m.status.State, m.status.Since = state, now.UTC()
	}
}
