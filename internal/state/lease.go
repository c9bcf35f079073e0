package state

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Lease makes one process at a time the owner of a journal.
type Lease interface {
	// Acquire begins a new term for c. It does not wait: while another process
	// holds the lease it fails with fleet.ErrNotLeader and names that one.
	Acquire(ctx context.Context, c Candidate) (Grant, error)
	// Leader reads who holds the lease now; false while nobody does.
	Leader(ctx context.Context) (LeaseInfo, bool, error)
}

// Candidate is a server that owns the fleet or would. Everything but Secret
// may be shown to people.
type Candidate struct {
	Name    string `json:"name"`
	Address string `json:"address,omitempty"` // URL of its API for other servers; empty: none can reach it
	// CertSHA256 is the hex fingerprint of the certificate at Address, which
	// needs no authority then; empty for plain HTTP.
	CertSHA256 string `json:"cert_sha256,omitempty"`
	// Secret proves other servers of the same store to this one: only who may
	// read the store knows it.
	Secret string `json:"secret,omitempty"`
	// KeyID names the key that it seals with; empty if it does not say.
	KeyID string `json:"key_id,omitempty"`
}

// LogValue keeps the secret out of logs.
func (c Candidate) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// Format keeps the secret out of texts, whatever the verb.
func (c Candidate) Format(f fmt.State, _ rune) {
	fmt.Fprint(f, strings.TrimSuffix(c.Name+" ("+c.Address+")", " ()"))
}

// LeaseInfo is who owns the fleet.
type LeaseInfo struct {
	Candidate
	Term    int64
	Expires time.Time // unless it is renewed; zero: it lasts until given up
}

// Grant is a term of ownership.
type Grant struct {
	Term        int64  // greater than every earlier one: max(last+1, unix ms)
	ClaimToken  string // random, one per term, durable before it is used
	Fingerprint string // of the storage itself: a copy has another one
	Tenure      Tenure
	// Revision is the store's as the term began.
	Revision uint64
	// Earlier terms, newest first: by them a host tells who took over in order.
	Earlier []Claim
}

// Claim is what the journal remembers of a term.
type Claim struct {
	Term     int64
	Token    string
	Revision uint64 // the store's as the term began
}

// Proof is what shows a host that this store led the fleet in an earlier term:
// that term's token, and how far the store had come when the term had ended.
// Without a token the store does not know the term.
func (s *Store) Proof(term int64) (token string, revision uint64) {
	next := s.grant.Revision
	for _, c := range s.grant.Earlier {
		if c.Term == term {
			return c.Token, next
		}
		next = c.Revision
	}
	return "", 0
}

// Tenure is the living side of a Grant.
type Tenure interface {
	// Check returns fleet.ErrNotLeader once the term may have ended. It does
	// no I/O.
	Check() error
	// Lost is closed when Check begins to fail, Release included. Nil: never.
	Lost() <-chan struct{}
	// Release ends the term, so that another process can begin the next one at
	// once. It is idempotent.
	Release(ctx context.Context) error
}

// HeldBy is the error of an Acquire that finds the lease taken.
func HeldBy(what string, c Candidate) *fleet.Error {
	return fleet.Errorf(fleet.CodeUnavailable, "%s is in use by %v: %w", what, c, fleet.ErrNotLeader)
}
