package model

import (
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Policy holds the numbers. DefaultPolicy has ours.
type Policy struct {
	Period time.Duration // of the pass over one marquee

	LeaseTTL   time.Duration
	LeaseRenew time.Duration

	StrikesNeeded int           // complete looks for a worsening
	StrikeGap     time.Duration // between two that count
	StrikeMemory  time.Duration

	MissesToQuarantine int
	MissMemory         time.Duration
	ProbeMin           time.Duration // between looks at a quarantined marquee
	ProbeMax           time.Duration

	RolloutsPerPass int           // also repairs, conflict retries, recoveries
	ApplyGrace      time.Duration // after an up, before anything is repaired
	RolloutCooldown time.Duration
	RepairLease     time.Duration
	RepairTries     int
	RepairWindow    time.Duration
	ConflictTries   int
	ConflictWindow  time.Duration
	ConflictSpacing time.Duration

	StaleFast          time.Duration // in_progress, its worker known to be dead
	StaleSlow          time.Duration // in_progress, nothing known of its worker
	RequeueMin         time.Duration // doubled with each try
	RequeueMax         time.Duration
	ExpiryFirstWarning time.Duration // before the end
	ExpiryLastWarning  time.Duration
	ExpiryGrace        time.Duration // at least between the last warning and the end
	ReclaimsPerPass    int           // expired playgrounds and finished tricks
	TrickEvery         time.Duration // between looks at a marquee with a trick at work

	EventSlack time.Duration // an end this long after a daemon's start is still explained by it

	ConnectTimeout   time.Duration
	HandshakeTimeout time.Duration
	LookHostTimeout  time.Duration // on the host
	LookTimeout      time.Duration // here
	UpTimeout        time.Duration
	PullTimeout      time.Duration
	DownTimeout      time.Duration
	HealthInterval   time.Duration
	HealthTimeout    time.Duration
	KeepaliveEvery   time.Duration
	KeepaliveMisses  int
	Sessions         int // on one connection
}

// DefaultPolicy returns our numbers; appendix A of the specification has the
// published ones beside them.
func DefaultPolicy() Policy {
	return Policy{
		Period:   time.Minute,
		LeaseTTL: time.Minute, LeaseRenew: 15 * time.Second,
		StrikesNeeded: 2, StrikeGap: 20 * time.Second, StrikeMemory: 30 * time.Minute,
		MissesToQuarantine: 5, MissMemory: 30 * time.Minute,
		ProbeMin: 5 * time.Minute, ProbeMax: 30 * time.Minute,
		RolloutsPerPass: 3, ApplyGrace: 3 * time.Minute, RolloutCooldown: 10 * time.Minute,
		RepairLease: 10 * time.Minute, RepairTries: 3, RepairWindow: time.Hour,
		ConflictTries: 2, ConflictWindow: time.Hour, ConflictSpacing: 10 * time.Minute,
		StaleFast: 2 * time.Minute, StaleSlow: 30 * time.Minute,
		RequeueMin: 15 * time.Second, RequeueMax: 5 * time.Minute, EventSlack: 30 * time.Second,
		ExpiryFirstWarning: 24 * time.Hour, ExpiryLastWarning: time.Hour, ExpiryGrace: 15 * time.Minute, ReclaimsPerPass: 3,
		TrickEvery:     5 * time.Second,
		ConnectTimeout: 10 * time.Second, HandshakeTimeout: 10 * time.Second,
		LookHostTimeout: 20 * time.Second, LookTimeout: 30 * time.Second,
		UpTimeout: 300 * time.Second, PullTimeout: 900 * time.Second, DownTimeout: 120 * time.Second,
		HealthInterval: 2 * time.Second, HealthTimeout: 90 * time.Second,
		KeepaliveEvery: 15 * time.Second, KeepaliveMisses: 3, Sessions: 4,
	}
}

// Validate reports the first number that would make a promise void.
func (p Policy) Validate() error {
	for _, c := range []struct {
		ok   bool
		what string
	}{
		{p.Period >= time.Second, "Period must be at least 1s"},
		{p.StrikesNeeded >= 2, "StrikesNeeded must be at least 2: one look never suffices"},
		{p.StrikeGap > 0, "StrikeGap must be more than 0"},
		{p.StrikeMemory > p.StrikeGap && p.StrikeMemory > p.Period, "StrikeMemory must be longer than StrikeGap and Period"},
		{p.MissesToQuarantine >= 2 && p.MissMemory > p.Period, "MissesToQuarantine must be at least 2 and MissMemory longer than Period"},
		{p.ProbeMin > 0 && p.ProbeMax >= p.ProbeMin, "ProbeMin must be more than 0 and not above ProbeMax"},
		{p.RolloutsPerPass >= 0 && p.RepairTries >= 0 && p.ConflictTries >= 0, "a budget must not be negative"},
		{p.RepairTries < maxTries && p.ConflictTries < maxTries, fmt.Sprintf("RepairTries and ConflictTries must be below %d", maxTries)},
		{p.RequeueMin > 0 && p.RequeueMax >= p.RequeueMin, "RequeueMin must be more than 0 and not above RequeueMax"},
		{p.ExpiryLastWarning > 0 && p.ExpiryFirstWarning > p.ExpiryLastWarning, "ExpiryFirstWarning must be longer than ExpiryLastWarning, and that more than 0"},
		{p.ExpiryGrace > 0 && p.ReclaimsPerPass >= 0 && p.TrickEvery > 0, "ExpiryGrace and TrickEvery must be more than 0, ReclaimsPerPass not negative"},
		{p.StaleFast > 0 && p.StaleSlow >= p.StaleFast, "StaleFast must be more than 0 and not above StaleSlow"},
		{p.LeaseRenew > 0 && 2*p.LeaseRenew <= p.LeaseTTL, "LeaseRenew must be at most half of LeaseTTL"},
		{p.LookHostTimeout < p.LookTimeout, "LookHostTimeout must be below LookTimeout"},
		{p.Sessions >= 1 && p.Sessions <= 10, "Sessions must be 1 to 10: sshd allows 10 by default"},
	} {
		if !c.ok {
			return fleet.Errorf(fleet.CodeInvalidArgument, "playguard policy: %s", c.what)
		}
	}
	return nil
}

// Backoff returns how long to wait after this many tries: the first wait, then
// twice the one before, up to the last.
func Backoff(tries int, first, last time.Duration) time.Duration {
	d := first
	for ; tries > 0 && d < last; tries-- {
		d *= 2
	}
	return min(d, last)
}

// NextLook returns how long after a look the next is due: the period, or
// longer and longer for a quarantined marquee.
func (p Policy) NextLook(m Marquee) time.Duration {
	if m.Reach != ReachQuarantined {
		return p.Period
	}
	return Backoff(m.Streak.Count-p.MissesToQuarantine, p.ProbeMin, p.ProbeMax)
}
