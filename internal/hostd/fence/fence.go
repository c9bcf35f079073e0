// Package fence keeps two control planes from hurting each other at a host: a
// durable mark per fleet, which a call that changes something must match.
package fence

import (
	"crypto/subtle"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
)

// Fence is the caller's proof that it leads its fleet now.
type Fence struct {
	FleetID     string
	Term        int64
	ClaimToken  string
	Fingerprint string
}

var validName = regexp.MustCompile(`^[\x21-\x7e]{1,128}$`)

func invalid(what, value, limit string) error {
	return fleet.Errorf(fleet.CodeInvalidArgument, "%s %.80q is not allowed", what, value).
		With(fleet.DetailLimit, limit)
}

// Mark is what a host holds of a fleet's leadership.
type Mark struct {
	FleetID     string `json:"fleet_id"`
	Fingerprint string `json:"fingerprint"`
	Term        int64  `json:"term"`
	Token       string `json:"token"`
}

// Marks are a host's marks, one per fleet.
type Marks struct {
	mu    sync.Mutex
	marks map[string]Mark
	kept  map[string]int64 // the highest term of a fleet that is known to be durable
	keep  func(Mark) (wait func() error)
}

// NewMarks makes marks that keep makes durable. It must not block; what it
// returns does.
func NewMarks(keep func(Mark) (wait func() error)) *Marks {
	return &Marks{marks: map[string]Mark{}, kept: map[string]int64{}, keep: keep}
}

// Restore sets a mark that was read back.
func (f *Marks) Restore(m Mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.marks[m.FleetID], f.kept[m.FleetID] = m, m.Term
}

// Locked calls fn with every mark while none can change.
func (f *Marks) Locked(fn func([]Mark)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(slices.Collect(maps.Values(f.marks)))
}

// Claim raises a fleet's mark when a term begins and returns once it is
// durable. Repeating it is harmless; a lower term, or another claimant of the
// same term, is refused.
func (f *Marks) Claim(fence Fence) error {
	wait, err := f.raise(fence)
	if err != nil || wait == nil {
		return err
	}
	if err := wait(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kept[fence.FleetID] = max(f.kept[fence.FleetID], fence.Term)
	return nil
}

func (f *Marks) raise(fence Fence) (wait func() error, err error) {
	if err := fence.validate(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.marks[fence.FleetID]
	switch {
	case fence.Term < m.Term:
		return nil, stale(fence, m)
	case fence.Term == m.Term && !m.held(fence):
		return nil, fleet.Errorf(fleet.CodeConflict, "term %d of the fleet: %w: another control plane has claimed it", fence.Term, fleet.ErrStaleTerm).
			With(fleet.DetailReason, "claimed_by_another")
	case fence.Term == m.Term && f.kept[fence.FleetID] == m.Term:
		return nil, nil
	}
	// Also for a mark that is there and may not be durable yet: after a restart
	// an earlier term must not be admitted again.
	m = Mark{FleetID: fence.FleetID, Fingerprint: fence.Fingerprint, Term: fence.Term, Token: fence.ClaimToken}
	f.marks[fence.FleetID] = m
	return f.keep(m), nil
}

// Check admits a change only from the holder of the claimed term.
func (f *Marks) Check(fence Fence) error {
	if err := fence.validate(); err != nil {
		return err
	}
	f.mu.Lock()
	m := f.marks[fence.FleetID]
	f.mu.Unlock()
	switch {
	case fence.Term < m.Term:
		return stale(fence, m)
	case fence.Term > m.Term:
		return fleet.Errorf(fleet.CodeConflict, "%w: term %d", hostwire.ErrUnclaimed, fence.Term).
			With(fleet.DetailReason, "unclaimed")
	case !m.held(fence):
		return fleet.Errorf(fleet.CodeConflict, "%w: another control plane holds term %d", fleet.ErrStaleTerm, fence.Term).
			With(fleet.DetailReason, "claimed_by_another")
	}
	return nil
}

func (m Mark) held(f Fence) bool {
	token := subtle.ConstantTimeCompare([]byte(m.Token), []byte(f.ClaimToken))
	return token == 1 && m.Fingerprint == f.Fingerprint
}

func stale(f Fence, m Mark) error {
	return fleet.Errorf(fleet.CodeConflict, "%w: this host has seen term %d, the call carries %d", fleet.ErrStaleTerm, m.Term, f.Term).
		With(fleet.DetailReason, "stale_term")
}

func (f Fence) validate() error {
	switch {
	case !validName.MatchString(f.FleetID):
		return invalid("fleet id", f.FleetID, "1 to 128 printable characters")
	case f.Term <= 0:
		return invalid("term", strconv.FormatInt(f.Term, 10), "1 or more")
	case f.ClaimToken == "" || len(f.ClaimToken) > 256 || len(f.Fingerprint) > 512:
		return fleet.Errorf(fleet.CodeInvalidArgument, "the claim token or the store's fingerprint is missing or too long")
	}
	return nil
}
