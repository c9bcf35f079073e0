package storetest

import (
	"errors"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// leaseIsSeen reads the lease as another process does, through its whole life.
func leaseIsSeen(t *testing.T, open func() Backend) {
	other := open()
	t.Cleanup(func() { closeNow(t, other) })
	if info, held, err := other.Leader(t.Context()); held || err != nil {
		t.Errorf("before the first term: %+v %v %v", info, held, err)
	}
	b := open()
	t.Cleanup(func() { closeNow(t, b) })
	c := state.Candidate{Name: "first", Address: "https://first:1", CertSHA256: "ab", Secret: "hidden"}
	g, err := b.Acquire(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, who := range []Backend{b, other} {
		info, held, err := who.Leader(t.Context())
		if err != nil || !held || info.Candidate != c || info.Term != g.Term {
			t.Errorf("during the term: %#v of term %d, held %v, %v", info.Candidate, info.Term, held, err)
		}
		if !info.Expires.IsZero() && time.Until(info.Expires) <= 0 {
			t.Errorf("the lease of a living owner expired at %v", info.Expires)
		}
	}
	select {
	case <-g.Tenure.Lost():
		t.Error("a term is lost that goes on")
	default:
	}

	for range 2 {
		if err := g.Tenure.Release(t.Context()); err != nil {
			t.Errorf("release: %v", err)
		}
	}
	if err := g.Tenure.Check(); !errors.Is(err, fleet.ErrNotLeader) {
		t.Errorf("check after the release: %v", err)
	}
	select {
	case <-g.Tenure.Lost():
	default:
		t.Error("nobody is told of the release")
	}
	closeNow(t, b)
	if info, held, err := other.Leader(t.Context()); held || err != nil {
		t.Errorf("after the release: %+v %v %v", info, held, err)
	}
	next, err := other.Acquire(t.Context(), state.Candidate{Name: "second"})
	if err != nil || next.Term <= g.Term {
		t.Fatalf("the next term is %d after %d, %v", next.Term, g.Term, err)
	}
}
