package standby

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// peers are the standbys that a leader has heard of.
type peers struct {
	mu   sync.Mutex
	seen map[string]time.Time
}

const (
	// maxPeers bounds how many standbys are remembered.
	maxPeers = 64
	// peerAge is how long after its last sign a standby counts as there.
	peerAge = 5 * time.Second
)

func (p *peers) note(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.seen[name]; known || len(p.seen) < maxPeers {
		p.seen[name] = time.Now()
	}
}

func (p *peers) names() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.seen, func(_ string, at time.Time) bool { return time.Since(at) > peerAge })
	return slices.Sorted(maps.Keys(p.seen))
}

// Standbys are the names of the servers that stand by for this one, as far as
// they have shown themselves in the last seconds.
func (f *Front) Standbys() []string { return f.peers.names() }

// Leading reports whether this process answers for the fleet.
func (f *Front) Leading() bool { return f.part.Load().reign != nil }

// Started is when the process began.
func (f *Front) Started() time.Time { return f.started }

// standbyStatus is what a standby says of itself.
func (f *Front) standbyStatus(u *upstream) map[string]any {
	return map[string]any{
		"role": "standby", "name": f.cfg.Self.Name, "address": f.cfg.Self.Address, "version": f.cfg.Version,
		"uptime_seconds": int64(time.Since(f.started).Seconds()),
		// A standby holds no state, so what can be old is what it knows of the lease.
		"lag_seconds": time.Since(time.Unix(0, u.looked.Load())).Round(time.Millisecond).Seconds(),
	}
}
