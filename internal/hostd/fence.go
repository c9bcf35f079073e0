package hostd

import (
	"crypto/subtle"
	"regexp"
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

// Ref names one life of a VM and one operation on it. Generation zero means
// any.
type Ref struct {
	VMID       string
	UID        string
	Generation int64
	OpID       string
}

var (
	validUID  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	validVMID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$`)
	validName = regexp.MustCompile(`^[\x21-\x7e]{1,128}$`)
)

func (r Ref) validate() error {
	switch {
	case !validVMID.MatchString(r.VMID):
		return invalid("vm id", r.VMID, validVMID.String())
	case !validUID.MatchString(r.UID):
		return invalid("uid", r.UID, validUID.String())
	case !validName.MatchString(r.OpID):
		return invalid("operation id", r.OpID, "1 to 128 printable characters")
	case r.Generation < 0:
		return invalid("generation", strconv.FormatInt(r.Generation, 10), "0 or more")
	}
	return nil
}

func invalid(what, value, limit string) error {
	return fleet.Errorf(fleet.CodeInvalidArgument, "%s %.80q is not allowed", what, value).
		With(fleet.DetailLimit, limit)
}

// fences keeps the host's durable mark per fleet.
type fences struct {
	log *journal

	mu    sync.Mutex
	marks map[string]mark
}

// claim raises a fleet's mark when a term begins. Repeating it is harmless; a
// lower term, or another claimant of the same term, is refused.
func (f *fences) claim(fence Fence) error {
	t, err := f.raise(fence)
	if err != nil || t == nil {
		return err
	}
	return t.wait()
}

func (f *fences) raise(fence Fence) (*ticket, error) {
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
	case fence.Term == m.Term:
		return nil, nil
	}
	m = mark{FleetID: fence.FleetID, Fingerprint: fence.Fingerprint, Term: fence.Term, Token: fence.ClaimToken}
	f.marks[fence.FleetID] = m
	return f.log.append(record{Mark: &m}, true), nil
}

// check admits a change only from the holder of the claimed term.
func (f *fences) check(fence Fence) error {
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

func (m mark) held(f Fence) bool {
	token := subtle.ConstantTimeCompare([]byte(m.Token), []byte(f.ClaimToken))
	return token == 1 && m.Fingerprint == f.Fingerprint
}

func stale(f Fence, m mark) error {
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
