package reconcile

import (
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Memory is what one cycle remembers for the next. It is volatile: a restart
// begins with none, so every strike and every try counts anew. A plan never
// changes the memory it was given.
type Memory struct {
	Strikes map[VMKey]Strike // of missing
	Stuck   map[VMKey]Strike
	Idle    map[VMKey]Strike
	Orphans map[OrphanKey]Tries
	// Destroys are the retries of destroys that did not finish.
	Destroys map[VMKey]Tries
	// Health are the verdicts that guests gave last.
	Health map[VMKey]fleet.HealthStatus
	// Collects are the retries of collecting snapshots, by id.
	Collects map[string]Tries
	// Spent is what the budgets of destruction have given out.
	Spent map[BudgetKey]Spent
	// Listed is how many VMs each host listed when it was last seen.
	Listed map[string]int
	// Jumps are the leaps of the wall clock, oldest first, at most maxJumps.
	Jumps []Jump
}

// VMKey is one life on one host.
type VMKey struct{ HostID, UID string }

// OrphanKey is one orphan.
type OrphanKey struct{ HostID, VMID, UID string }

// Strike counts the complete looks in a row at which a condition held. That of
// a missing VM goes with its row's revision too.
type Strike struct {
	Count       int
	RowRevision uint64
	FirstLook   string
}

// Tries counts attempts; Wait is for how many more cycles none is made.
type Tries struct {
	Made int
	Wait int
	Dead bool // given up
	Gone bool // the host confirmed that the VM is not there
}

// BudgetKey is one pass on one host.
type BudgetKey struct {
	HostID string
	Pass   Kind
}

// Spent is what one budget gave out within the last hour, oldest first.
type Spent struct {
	Window    []Spend
	Exhausted bool // and it has been said
}

// Spend is how many destructions were begun at a time since the loop's start;
// before it for those of an earlier process.
type Spend struct {
	At time.Duration
	N  int
}

// Jump is a leap forward of the wall clock, and what it showed before.
type Jump struct {
	At time.Time
	By time.Duration
}

// Keep drops what belongs to hosts that are no longer registered.
func (m Memory) Keep(registered func(hostID string) bool) Memory {
	keep := func(host string) bool { return host == "" || registered(host) }
	m = m.filter(keep)
	m.Spent = kept(m.Spent, func(k BudgetKey) bool { return keep(k.HostID) })
	return m
}

// Untold takes back what was remembered of news that did not get out, so that a
// later cycle tells it: nobody is ended who was not warned.
func (m Memory) Untold(news []Step) Memory {
	if len(news) == 0 {
		return m
	}
	m = m.filter(func(string) bool { return true })
	for _, s := range news {
		key, budget := VMKey{s.HostID, s.UID}, BudgetKey{s.HostID, s.Pass}
		switch s.Kind {
		case KindStuckSuspected:
			delete(m.Stuck, key)
		case KindIdleSuspected:
			delete(m.Idle, key)
		case KindHealth:
			h := m.Health[key]
			switch {
			case h.State != s.Is: // it has changed again
			case s.Was == "":
				delete(m.Health, key)
			default:
				h.State = s.Was
				m.Health[key] = h
			}
		case KindBudget:
			if spent, ok := m.Spent[budget]; ok {
				spent.Exhausted = false
				m.Spent[budget] = spent
			}
		}
	}
	return m
}

// without copies what belongs to hosts that were not looked at; the passes
// write the rest anew, so that nothing outlives its condition by accident.
func (m Memory) without(looked map[string]fleet.Observation, hostless bool) Memory {
	return m.filter(func(host string) bool {
		_, ok := looked[host]
		return !ok && (host != "" || !hostless)
	})
}

func (m Memory) filter(keep func(host string) bool) Memory {
	vm := func(k VMKey) bool { return keep(k.HostID) }
	return Memory{
		Strikes:  kept(m.Strikes, vm),
		Stuck:    kept(m.Stuck, vm),
		Idle:     kept(m.Idle, vm),
		Orphans:  kept(m.Orphans, func(k OrphanKey) bool { return keep(k.HostID) }),
		Destroys: kept(m.Destroys, vm),
		Health:   kept(m.Health, vm),
		Listed:   kept(m.Listed, keep),
		// These belong to no host, or outlive a look at it.
		Collects: kept(m.Collects, func(string) bool { return true }),
		Spent:    kept(m.Spent, func(k BudgetKey) bool { return true }),
		Jumps:    m.Jumps,
	}
}

func kept[K comparable, V any](m map[K]V, keep func(K) bool) map[K]V {
	out := make(map[K]V, len(m))
	for k, v := range m {
		if keep(k) {
			out[k] = v
		}
	}
	return out
}
