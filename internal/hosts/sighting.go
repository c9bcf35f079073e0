package hosts

import (
	"cmp"
	"log/slog"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Sighting is what this process knows of a host's reachability. It is never
// stored and starts empty with the leadership.
type Sighting struct {
	LastSeen time.Time // zero: not yet
	// MissedSince is when the looks that all missed began; zero: seen last.
	MissedSince time.Time
	Misses      int
	Reason      string // of the last miss
	// Unreachable is whether the misses are too many, or the silence too long,
	// to call it a lost packet.
	Unreachable bool
	// Complete is whether the host has been seen completely at least once.
	Complete bool
	// Inherited is the revision up to which rows are an earlier process's.
	Inherited uint64
	// Foreign is how many VMs of other control planes the last look counted.
	Foreign int
	// ForeignFleets counts the same by fleet; an empty id is an owner that
	// cannot be read.
	ForeignFleets map[string]int
	// Fenced is why the host takes no change from this server; empty if it does.
	Fenced string
	// Returning is why a host that came back takes nothing new yet; empty: it
	// does.
	Returning string
	// Certificate is the fingerprint that the host shows instead of its
	// registered one; empty: it does not.
	Certificate string
}

// sighting is a Sighting with what the service keeps beside it.
type sighting struct {
	Sighting
	told   bool      // the log has been given host.unreachable, and not yet host.reachable
	probed time.Time // when the agent was last asked for its capacity
	failed time.Time // when that last went wrong

	accepted int64 // the term whose acceptance was told
	looks    int   // complete ones at a host that came back
}

// answered is what an answer says of the host itself.
type answered struct {
	foreign  int
	fleets   map[string]int // the same by fleet
	complete bool
	fenced   string
	compared compared
}

// watch is the part of a Service that knows how each host is seen, and what
// there is to say about it.
type watch struct {
	cfg       *Config
	log       *slog.Logger
	news      chan struct{} // there are notices
	inherited uint64        // rows up to this revision are an earlier process's

	mu          sync.Mutex          // guards what follows
	sightings   map[string]sighting // by host id
	notices     []fleet.Event       // to be stored, oldest first
	firstNotice int                 // how many there were before the first of them
}

// gone applies the rule: three looks in a row missed, or one missed and nothing
// heard for 90 s, whichever comes first. A host that this process has not seen
// yet has been silent since the first look that missed.
func (s *watch) gone(n *sighting, now time.Time) bool {
	if n.Misses == 0 {
		return false
	}
	since := n.LastSeen
	if since.IsZero() {
		since = n.MissedSince
	}
	return n.Misses >= s.cfg.UnreachableLooks || now.Sub(since) >= s.cfg.UnreachableAfter
}

// seen takes in an answer: the heartbeat of a host.
func (s *watch) seen(id string, at time.Time, a answered) {
	s.mu.Lock()
	before := s.at(id)
	now := sighting{
		Sighting: Sighting{
			LastSeen: at, Foreign: a.foreign, ForeignFleets: a.fleets, Fenced: a.fenced,
			Complete: before.Complete || a.complete, Returning: before.Returning,
		},
		probed: before.probed, failed: before.failed, accepted: before.accepted, looks: before.looks,
	}
	if before.told || s.gone(&before, at) {
		now.Returning, now.looks = "it was unreachable since "+before.MissedSince.UTC().Format(time.RFC3339)+"; what it runs is compared first", 0
	}
	if before.Misses > 0 {
		now.probed, now.failed = time.Time{}, time.Time{} // it may come back another machine than it went
	}
	if before.told {
		s.tell(reachable(id, at, before.Sighting))
	}
	if a.complete {
		s.judged(id, &now, a.compared)
	}
	s.sightings[id] = now
	if a.fenced != "" && before.Fenced == "" {
		s.tell(fenced(id, a.fenced))
	}
	s.mu.Unlock()
	if a.foreign != before.Foreign {
		s.log.Warn("host has VMs of other control planes, which are left alone", slog.String("host_id", id), slog.Int("foreign", a.foreign))
	}
}

// asked notes that the host has just told its capacity.
func (s *watch) asked(id string, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.at(id)
	n.probed = at
	s.sightings[id] = n
}

func (s *watch) missed(id string, at time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.at(id)
	n.Misses++
	n.Reason = reasonOf(err)
	if shown := strangeCertificate(err); shown != "" && shown != n.Certificate {
		n.Certificate = shown
		s.tell(hostEvent(id, fleet.EventHostCertificate, fleet.Reason{Actor: fleet.ActorHost, Rule: ruleCertificate, Evidence: n.Reason}, map[string]string{"shown": shown}))
	}
	if n.MissedSince.IsZero() {
		n.MissedSince = at
	}
	s.judge(id, &n, time.Now())
	s.sightings[id] = n
}

// judge notes that a host has become unreachable. It needs the lock.
func (s *watch) judge(id string, n *sighting, now time.Time) {
	if n.told || !s.gone(n, now) {
		return
	}
	n.told = true
	s.tell(unreachable(id, n.Sighting))
}

// silence judges the hosts that nobody has looked at meanwhile.
func (s *watch) silence(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.sightings {
		n := s.at(id)
		s.judge(id, &n, now)
		s.sightings[id] = n
	}
}

func (s *watch) at(id string) sighting { return s.sightings[id] }

// Sighting says when a host was last seen by this process.
func (s *watch) Sighting(id string) Sighting {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.at(id)
	n.Unreachable = s.gone(&n, time.Now())
	n.Inherited = s.inherited
	return n.Sighting
}

// settled is whether a host need not be compared.
func (s Sighting) settled() bool { return s.Returning == "" && !s.Unreachable }

// Unverified is whether a running VM has only its record to show for it: an
// earlier process left it, and its host has not been seen completely since.
func (s Sighting) Unverified(vm *fleet.VM) bool {
	return vm.State == fleet.VMStateRunning && vm.Revision <= s.Inherited && !s.Complete
}

// Condition is the reachability in one word: unknown, reachable, missed or
// unreachable.
func (s Sighting) Condition() string {
	switch {
	case s.Unreachable:
		return "unreachable"
	case s.Misses > 0:
		return "missed"
	case !s.LastSeen.IsZero():
		return "reachable"
	}
	return "unknown"
}

// Unreachable names the hosts that count as unreachable, with the last reason,
// and those that take no change from this server or came back and have not been
// compared yet; placement leaves them out.
func (s *watch) Unreachable() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out map[string]string
	now := time.Now()
	for id, n := range s.sightings {
		why := cmp.Or(n.Fenced, n.Returning)
		if s.gone(&n, now) {
			why = n.Reason
		}
		if why != "" {
			if out == nil {
				out = map[string]string{}
			}
			out[id] = why
		}
	}
	return out
}
