package remote_test

import (
	"errors"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/providertest"
)

// Two servers that were both confirmed do not take a host from each other in
// turns: a confirmation counts for the first claim of a term there. A new start
// with it counts again.
func TestAConfirmationCountsOnceATerm(t *testing.T) {
	w := newWorld(t, "")
	original := providertest.NewFleet()
	p := w.h.Connect(original)
	if _, err := p.Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	copied := original.At(5)
	copied.Change(func(f *provider.Fence) { f.Fingerprint = "copy" }, true)
	if c, err := w.h.Connect(copied).Claim(t.Context()); err != nil || c != (provider.Claimed{Term: 5, Replaced: 1}) {
		t.Fatalf("claim of a confirmed copy: %+v, %v", c, err)
	}
	original.Change(nil, true)
	if _, err := p.List(t.Context()); err != nil { // shows that the mark has moved
		t.Fatal(err)
	}
	for range 2 {
		if _, err := p.Claim(t.Context()); !errors.Is(err, fleet.ErrFenced) {
			t.Errorf("another claim of the term: %v", err)
		}
	}
	restarted := w.h.Connect(original)
	for range 2 { // the second from memory
		if c, err := restarted.Claim(t.Context()); err != nil || c != (provider.Claimed{Term: 1, Replaced: 5}) {
			t.Errorf("after a start with the confirmation: %+v, %v", c, err)
		}
	}
	w.destroy(t)
}

// A control plane that does not remember its terms can claim only what has not
// seen its fleet.
func TestAClaimWithoutMemory(t *testing.T) {
	w := newWorld(t, "")
	first := providertest.NewFleet()
	if _, err := w.h.Connect(first).Claim(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := first.At(2)
	forgetful := fenceFunc(next.Fence)
	_, err := w.h.Connect(forgetful).Claim(t.Context())
	if !errors.Is(err, fleet.ErrFenced) || fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("claim without a proof: %v", err)
	}
	w.destroy(t)
}
