package fence

import (
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// maxMarks bounds the fleets that a host remembers.
const maxMarks = 4096

// Marks are a host's marks, one per fleet.
type Marks struct {
	mu    sync.Mutex
	marks map[string]*kept // by fleet id
	keep  func(Mark) (wait func() error)
}

// kept is a mark and what this process knows of it.
type kept struct {
	Mark
	durable bool      // the mark is: until then it admits nobody
	seen    time.Time // a call of the fleet, or this process's start
}

// NewMarks makes marks that keep makes durable. It must not block; what it
// returns does.
func NewMarks(keep func(Mark) (wait func() error)) *Marks {
	return &Marks{marks: map[string]*kept{}, keep: keep}
}

// Restore sets a mark that was read back.
func (f *Marks) Restore(m Mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.marks[m.FleetID] = &kept{Mark: m, durable: true, seen: time.Now()}
}

// Saw takes in a mark as a create has left it, which was read back: how far the
// store had come, and the mark itself where its own record is damaged. An older
// mark would admit an earlier term, and none the first store that asks.
func (f *Marks) Saw(m Mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sawLocked(m)
}

// sawLocked reports whether m took the place of what was known.
func (f *Marks) sawLocked(m Mark) (newer bool) {
	if m.FleetID == "" {
		return false // of an agent that did not keep it
	}
	k := f.marks[m.FleetID]
	switch {
	case k == nil || m.Line > k.Line || m.Line == k.Line && m.Term > k.Term:
		f.marks[m.FleetID] = &kept{Mark: m, durable: true, seen: time.Now()}
		return true
	case m.Line == k.Line:
		k.Revision = max(k.Revision, m.Revision)
	}
	return false
}

// Recover is Saw for the record of a create that the log does not have.
func (f *Marks) Recover(m Mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sawLocked(m) {
		f.keep(m)
	}
}

// Locked calls fn with every mark while none can change.
func (f *Marks) Locked(fn func([]Mark)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	marks := make([]Mark, 0, len(f.marks))
	for _, k := range f.marks {
		marks = append(marks, k.Mark)
	}
	fn(marks)
}

// Claim raises a fleet's mark when a term begins and returns once that is
// durable. Repeating it is harmless. A refused claim changes nothing. needed
// tells of which fleets a mark must not be forgotten; nil: of all.
func (f *Marks) Claim(c Claim, needed func(fleetID string) bool) error {
	if err := c.validate(); err != nil {
		return err
	}
	next, wait, err := f.raise(c, needed)
	if err != nil || wait == nil {
		return err
	}
	if err := wait(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if k := f.marks[c.FleetID]; k != nil && k.Mark.held(next) {
		k.durable = true
	}
	return nil
}

// raise judges the claim and moves the mark. From then on the earlier holder
// is refused, while the new one is admitted once the mark is durable.
func (f *Marks) raise(c Claim, needed func(string) bool) (Fence, func() error, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now().UTC()
	k := f.marks[c.FleetID]
	if k == nil {
		if err := f.makeRoomLocked(needed); err != nil {
			return c.Fence, nil, err
		}
		k = &kept{}
		k.Mark = k.after(Claim{Fence: c.Fence}, now)
		f.marks[c.FleetID] = k
	} else {
		if err := k.judge(c); err != nil {
			return c.Fence, nil, err
		}
		switch {
		case k.held(c.Fence) && k.durable:
			k.seen = now
			return c.Fence, nil, nil
		case !k.held(c.Fence):
			k.Mark, k.durable = k.after(c, now), false
		}
	}
	// Also for a mark that is there and may not be durable yet: after a restart
	// an earlier term must not be admitted again.
	k.seen = now
	return c.Fence, f.keep(k.Mark), nil
}

// makeRoomLocked forgets the mark that was claimed longest ago of those that
// guard nothing, if there are too many.
func (f *Marks) makeRoomLocked(needed func(string) bool) error {
	if len(f.marks) < maxMarks {
		return nil
	}
	oldest := ""
	for id, k := range f.marks {
		if (needed == nil || needed(id)) || oldest != "" && !k.At.Before(f.marks[oldest].At) {
			continue
		}
		oldest = id
	}
	if oldest == "" {
		return fleet.Errorf(fleet.CodeUnavailable, "this host knows too many fleets already").
			With(fleet.DetailLimit, "4096").With(fleet.DetailRemedy, "purge VMs of fleets that are gone: fuse host purge")
	}
	delete(f.marks, oldest)
	return nil
}

// Check admits a change only from the holder of the claimed term.
func (f *Marks) Check(fence Fence) error {
	if err := fence.validate(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.admitLocked(fence)
	return err
}

// Admit is Check for a change that the store must know of as long as what it
// makes is there. It returns the mark with the revision that the call shows.
func (f *Marks) Admit(fence Fence) (Mark, error) {
	if err := fence.validate(); err != nil {
		return Mark{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	k, err := f.admitLocked(fence)
	if err != nil {
		return Mark{}, err
	}
	k.Revision = max(k.Revision, fence.Revision) // in one step: a claim between would take it for its own
	return k.Mark, nil
}

func (f *Marks) admitLocked(fence Fence) (*kept, error) {
	k := f.marks[fence.FleetID]
	switch {
	case k == nil:
		return nil, unclaimed(fence)
	case k.held(fence) && k.durable:
		k.seen = time.Now()
		return k, nil
	case k.held(fence) || fence.Term > k.Term || !same(k.Fingerprint, fence.Fingerprint):
		// The claim tells why, if it is refused.
		return nil, unclaimed(fence)
	case fence.Term < k.Term:
		return nil, stale(fence, k.Mark)
	}
	return nil, claimedByAnother(fence)
}

// Look notes that a fleet is being led and returns its mark's term, or zero.
func (f *Marks) Look(fleetID string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.marks[fleetID]
	if k == nil {
		return 0
	}
	k.seen = time.Now()
	return k.Term
}

// SeenSince reports whether a call of the fleet may have come after t. What
// came before this process started is not known, so it counts as then.
func (f *Marks) SeenSince(fleetID string, t time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.marks[fleetID]
	return k != nil && k.seen.After(t)
}
