package plane

import (
	"slices"
	"testing"
)

// A pass goes in this order: what can veto is known before what it could veto, and
// what removes for good comes last. docs/design/playguard.md says why.
func TestTheOrderOfAPass(t *testing.T) {
	l := testPlane(t).playguard.Loop
	got := []string{"look"}
	for _, p := range l.Before {
		got = append(got, p.Name)
	}
	got = append(got, "rules")
	for _, p := range l.After {
		got = append(got, p.Name)
	}
	if want := []string{"look", "branches", "registry auth", "tricks", "rules", "markers", "sweep"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
