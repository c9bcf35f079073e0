package memory

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lease"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/rows"
)

// holding is the lease row that journals on the same storage share.
type holding struct {
	holder  state.Candidate
	expires time.Time     // zero: it lasts until it is taken over
	over    chan struct{} // closed when the term has ended, for a holder without period
	held    bool
	claims  []state.Claim // newest first
}

// Acquire begins a term. Without Options.Lease it always succeeds and ends the
// term before it; with it, another journal's term has to expire or be given up.
func (j *Journal) Acquire(ctx context.Context, c state.Candidate) (state.Grant, error) {
	if err := ctx.Err(); err != nil {
		return state.Grant{}, err
	}
	token := make([]byte, 16)
	if _, err := rand.Read(token); err != nil {
		return state.Grant{}, fmt.Errorf("make claim token: %w", err)
	}
	asked := lease.Now()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.period > 0 && j.holds() {
		return state.Grant{}, state.HeldBy("the state in memory", j.lease.holder)
	}
	if j.lease.held && j.period == 0 {
		close(j.lease.over)
	}
	j.closed = false
	j.term = max(j.term+1, time.Now().UnixMilli())
	j.mine = j.term
	g := state.Grant{
		Term:        j.term,
		ClaimToken:  hex.EncodeToString(token),
		Fingerprint: "memory/" + j.fleetID,
		Revision:    j.revision,
	}
	claims := append([]state.Claim{{Term: g.Term, Token: g.ClaimToken, Revision: g.Revision}}, j.lease.claims...)
	claims = rows.PruneClaims(claims)
	g.Earlier = claims[1:]
	j.lease = holding{holder: c, over: make(chan struct{}), held: true, claims: claims}
	if j.period == 0 {
		g.Tenure = tenure{j.storage, j.term, j.lease.over}
		return g, nil
	}
	j.lease.expires = time.Now().Add(j.period)
	g.Tenure = lease.Keep(lease.Config{
		Timing: lease.Timing{Period: j.period}, Asked: asked,
		Extend: func(context.Context) error { return j.extend(g.Term, j.period) },
		GiveUp: func(context.Context) error { return j.extend(g.Term, 0) },
	})
	return g, nil
}

// Leader says who holds the lease.
func (j *Journal) Leader(ctx context.Context) (state.LeaseInfo, bool, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := ctx.Err(); err != nil || !j.holds() {
		return state.LeaseInfo{}, false, err
	}
	return state.LeaseInfo{Candidate: j.lease.holder, Term: j.term, Expires: j.lease.expires}, true, nil
}

// holds reports whether a term is under way. The caller has locked mu.
func (j *storage) holds() bool {
	return j.lease.held && (j.period == 0 || time.Now().Before(j.lease.expires))
}

// extend makes the term last so long from now on, if it is still the newest.
func (j *storage) extend(term int64, by time.Duration) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.check(term); err != nil {
		return err
	}
	j.lease.expires = time.Now().Add(by)
	j.lease.held = by > 0
	return nil
}

// tenure is a term that ends when the next begins.
type tenure struct {
	j    *storage
	term int64
	over chan struct{}
}

func (t tenure) Check() error {
	t.j.mu.Lock()
	defer t.j.mu.Unlock()
	if t.j.term != t.term {
		return fmt.Errorf("term %d has begun: %w", t.j.term, fleet.ErrNotLeader)
	}
	if !t.j.lease.held {
		return fmt.Errorf("term %d was given up: %w", t.term, fleet.ErrNotLeader)
	}
	return nil
}

func (t tenure) Lost() <-chan struct{} { return t.over }

func (t tenure) Release(context.Context) error {
	t.j.mu.Lock()
	defer t.j.mu.Unlock()
	if t.j.term == t.term && t.j.lease.held {
		t.j.lease.held = false
		close(t.over)
	}
	return nil
}
