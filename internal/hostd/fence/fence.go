// Package fence keeps two control planes from hurting each other at a host: a
// durable mark per fleet, which a call that changes something must match, and
// which only the next term of the same store can move.
package fence

import (
	"crypto/sha256"
	"crypto/subtle"
	"regexp"
	"strconv"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
)

// Fence is the caller's proof that it leads its fleet now.
type Fence struct {
	FleetID     string
	Term        int64
	ClaimToken  string
	Fingerprint string // of the store that issued the term
	// Revision is that of the store's newest durable change.
	Revision uint64
	// Volatile says that the store forgets with its process.
	Volatile bool
}

// Proof shows that a store also held an earlier term.
type Proof struct {
	Term  int64  // zero: nothing is shown
	Token string // empty: the store does not know that term
	// Revision is how far the store had come when that term had ended.
	Revision uint64
}

// Claim raises a fleet's mark when a term begins.
type Claim struct {
	Fence
	Proof Proof
	// AcceptTerm is the mark's term, if the operator confirmed that this store
	// is to replace the one behind the mark; zero: not confirmed.
	AcceptTerm int64
}

// Mark is what a host holds of a fleet's leadership.
type Mark struct {
	FleetID     string    `json:"fleet_id"`
	Fingerprint string    `json:"fingerprint"`
	Term        int64     `json:"term"`
	Token       string    `json:"token"`
	At          time.Time `json:"at,omitzero"`
	Volatile    bool      `json:"volatile,omitempty"`
	// Line counts the stores that the operator confirmed; Revision is the
	// highest that a create of this line has shown.
	Line     int    `json:"line,omitempty"`
	Revision uint64 `json:"revision,omitempty"`
}

// Details of a refused claim.
const (
	DetailMarkTerm = hostwire.DetailMarkTerm
	DetailMarkAt   = "mark_at"
)

// judge decides about a claim while the mark stands; nil moves it. The order
// of the rules matters: a foreign store is named as such whatever its term.
func (m Mark) judge(c Claim) error {
	switch {
	case m.held(c.Fence):
		return nil
	case c.AcceptTerm != 0:
		if c.AcceptTerm != m.Term {
			return m.refused(hostwire.ReasonMarkMoved, "another store was claimed here since the one that is to be replaced was seen")
		}
		if same(m.Fingerprint, c.Fingerprint) {
			// The store's own next leader is not to be replaced by this one.
			return m.inOrder(c.Fence)
		}
		return nil
	case c.Volatile != m.Volatile:
		return m.refused(hostwire.ReasonOtherKind, "this store and the one that last led the fleet here are not both kept in memory only")
	case m.Volatile:
		return m.inOrder(c.Fence)
	case !same(m.Fingerprint, c.Fingerprint):
		return m.refused(hostwire.ReasonOtherStore, "the fleet was last led here from another store, so this one is a copy or was moved")
	case c.Term <= m.Term:
		return m.inOrder(c.Fence)
	case c.Proof.Term != m.Term:
		return fleet.Errorf(fleet.CodeConflict, "%w: of term %d", hostwire.ErrNeedProof, m.Term).
			With(fleet.DetailReason, hostwire.ReasonNeedProof).With(DetailMarkTerm, strconv.FormatInt(m.Term, 10))
	case !same(m.Token, c.Proof.Token):
		return m.refused(hostwire.ReasonOlderStore, "this store does not know the term that last led the fleet here, so it is a copy or an older backup")
	case c.Proof.Revision < m.Revision:
		return m.refused(hostwire.ReasonOlderStore,
			"this store is an older backup: it had come to revision "+strconv.FormatUint(c.Proof.Revision, 10)+
				" in a term in which this host has seen revision "+strconv.FormatUint(m.Revision, 10))
	}
	return nil
}

// inOrder admits later terms only.
func (m Mark) inOrder(f Fence) error {
	switch {
	case f.Term < m.Term:
		return stale(f, m)
	case f.Term == m.Term:
		return claimedByAnother(f)
	}
	return nil
}

// after is the mark that a claim leaves.
func (m Mark) after(c Claim, at time.Time) Mark {
	next := Mark{
		FleetID: c.FleetID, Fingerprint: c.Fingerprint, Term: c.Term, Token: c.ClaimToken,
		At: at, Volatile: c.Volatile, Line: m.Line, Revision: m.Revision,
	}
	if c.AcceptTerm != 0 {
		// What the replaced store had seen is no measure for the new one.
		next.Line, next.Revision = m.Line+1, 0
	}
	return next
}

func (m Mark) refused(reason, why string) *fleet.Error {
	e := fleet.Errorf(fleet.CodeConflict, "%w: %s", fleet.ErrFenced, why).
		With(fleet.DetailReason, reason).With(DetailMarkTerm, strconv.FormatInt(m.Term, 10)).
		With(fleet.DetailRemedy, "if this is the store to go on with, stop every other server of this fleet and start this one once with --accept-store")
	if !m.At.IsZero() {
		e = e.With(DetailMarkAt, m.At.UTC().Format(time.RFC3339))
	}
	return e
}

func (m Mark) held(f Fence) bool {
	token, store := same(m.Token, f.ClaimToken), same(m.Fingerprint, f.Fingerprint)
	return m.Term == f.Term && token && store
}

// same compares secrets in a time that tells neither content nor length.
func same(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

func stale(f Fence, m Mark) error {
	return fleet.Errorf(fleet.CodeConflict, "%w: this host has seen term %d, the call carries %d", fleet.ErrStaleTerm, m.Term, f.Term).
		With(fleet.DetailReason, "stale_term").With(DetailMarkTerm, strconv.FormatInt(m.Term, 10))
}

func claimedByAnother(f Fence) error {
	return fleet.Errorf(fleet.CodeConflict, "%w: another control plane has claimed term %d", fleet.ErrStaleTerm, f.Term).
		With(fleet.DetailReason, "claimed_by_another").With(DetailMarkTerm, strconv.FormatInt(f.Term, 10))
}

func unclaimed(f Fence) error {
	return fleet.Errorf(fleet.CodeConflict, "%w: term %d", hostwire.ErrUnclaimed, f.Term).
		With(fleet.DetailReason, "unclaimed")
}

var validName = regexp.MustCompile(`^[\x21-\x7e]{1,128}$`)

func invalid(what, value, limit string) error {
	return fleet.Errorf(fleet.CodeInvalidArgument, "%s %.80q is not allowed", what, value).
		With(fleet.DetailLimit, limit)
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

func (c Claim) validate() error {
	if err := c.Fence.validate(); err != nil {
		return err
	}
	if c.AcceptTerm < 0 || c.Proof.Term < 0 || len(c.Proof.Token) > 256 {
		return fleet.Errorf(fleet.CodeInvalidArgument, "the proof of the claim is not well formed")
	}
	return nil
}
