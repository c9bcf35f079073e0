package hosts

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
)

var errFenced = fleet.Errorf(fleet.CodeConflict, "%w: this store is a copy", fleet.ErrFenced).
	With(fleet.DetailRemedy, "start once with --accept-store")

// told stores what waits and returns the types of all events.
func (f *fixture) told(t *testing.T) []string {
	t.Helper()
	if err := f.svc.publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f.events(t)
}

// A host that refuses the store may be looked at; nothing there is judged, and
// nothing new is placed there.
func TestAFencedHost(t *testing.T) {
	f := setup(t)
	h := f.register(t, nil)
	f.agent.claimErr = errFenced
	f.agent.listing.VMs = []fleet.ObservedVM{{ID: "fuse-t", UID: "u1", Running: true}}
	f.agent.listing.Foreign, f.agent.listing.ForeignFleets = 3, map[string]int{"other": 2, "": 1}
	for range 2 {
		obs := f.svc.Look(t.Context(), h)
		if _, ok := obs.VMs(); ok || obs.Quality() != fleet.Partial || !strings.Contains(obs.Reason(), "copy") || !strings.Contains(obs.Reason(), "--accept-store") {
			t.Errorf("got %v %q", obs.Quality(), obs.Reason())
		}
	}
	s := f.svc.Sighting("local")
	if !strings.Contains(s.Fenced, "copy") || s.Misses != 0 || s.Complete || s.ForeignFleets["other"] != 2 || f.svc.Fenced("local") == "" {
		t.Errorf("sighting %+v", s)
	}
	if why := f.svc.Unreachable()["local"]; !strings.Contains(why, "--accept-store") {
		t.Errorf("placement is told %q", why)
	}
	if got := f.told(t); len(got) != 2 || got[1] != fleet.EventHostFenced {
		t.Errorf("events %v, want the refusal once", got)
	}
	f.agent.claimErr = nil
	if obs := f.svc.Look(t.Context(), h); obs.Quality() != fleet.Complete {
		t.Errorf("once it is taken: %v %q", obs.Quality(), obs.Reason())
	}
	if s := f.svc.Sighting("local"); s.Fenced != "" || !s.Complete || len(f.svc.Unreachable()) != 0 {
		t.Errorf("once it is taken: %+v", s)
	}
}

// It is known at the registration already.
func TestAHostThatIsFencedWhenRegistered(t *testing.T) {
	f := setup(t)
	f.agent.claimErr = errFenced
	f.register(t, nil)
	if why := f.svc.Unreachable()["local"]; !strings.Contains(why, "copy") {
		t.Errorf("placement is told %q", why)
	}
	f.agent.claimErr = errAway
	f.register(t, nil)
	if s := f.svc.Sighting("local"); s.Fenced != "" || s.Misses != 0 {
		t.Errorf("after a claim without an answer: %+v", s)
	}
}

func TestAClaimThatHasNoAnswer(t *testing.T) {
	f := setup(t)
	h := f.register(t, nil)
	f.agent.claimErr = errAway
	if obs := f.svc.Look(t.Context(), h); obs.Quality() != fleet.Unseen || f.svc.Sighting("local").Misses != 1 {
		t.Errorf("got %v %q", obs.Quality(), obs.Reason())
	}
	f.agent.claimErr = errors.New("disk full")
	if obs := f.svc.Look(t.Context(), h); obs.Quality() != fleet.Partial || f.svc.Fenced("local") != "" {
		t.Errorf("got %v %q", obs.Quality(), obs.Reason())
	}
	f.agent.claimErr = fleet.ErrNotLeader
	if obs := f.svc.Look(t.Context(), h); obs.Quality() != fleet.Unseen {
		t.Errorf("got %v %q", obs.Quality(), obs.Reason())
	}
}

func TestAnAcceptedStoreIsToldOnce(t *testing.T) {
	f := setup(t)
	h := f.register(t, nil)
	f.agent.claimed = provider.Claimed{Term: 7, Replaced: 5}
	for range 3 {
		f.svc.Look(t.Context(), h)
	}
	if got := f.told(t); !slices.Equal(got, []string{fleet.EventHostRegistered, fleet.EventHostStoreAccepted}) {
		t.Errorf("events %v", got)
	}
}

func TestPurge(t *testing.T) {
	f := setup(t)
	f.register(t, nil)
	got, err := f.svc.Purge(t.Context(), "local", "other", "user:a", false)
	if err != nil || got != (Purged{Destroyed: 2, Failed: 1}) || !slices.Equal(f.agent.purged, []string{"other"}) {
		t.Errorf("%+v, %v, %v", got, err, f.agent.purged)
	}
	if got := f.told(t); !slices.Contains(got, fleet.EventHostPurged) {
		t.Errorf("events %v", got)
	}
	if _, err := f.svc.Purge(t.Context(), "gone", "other", "user:a", false); !errors.Is(err, fleet.ErrHostNotFound) {
		t.Errorf("of an unknown host: %v", err)
	}
	f.agent.err = errAway
	if _, err := f.svc.Purge(t.Context(), "local", "other", "user:a", false); fleet.CodeOf(err) != fleet.CodeUnavailable {
		t.Errorf("of a host that is away: %v", err)
	}
	f.svc.cfg.Admit = func(context.Context, string, string, map[string]string) error {
		return fleet.Errorf(fleet.CodeForbidden, "no")
	}
	if _, err := f.svc.Purge(t.Context(), "local", "other", "user:a", false); fleet.CodeOf(err) != fleet.CodeForbidden {
		t.Errorf("not admitted: %v", err)
	}
}
