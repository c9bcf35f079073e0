package hosts

import (
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

func TestLook(t *testing.T) {
	f := setup(t)
	h := f.register(t, nil)
	f.agent.listing.VMs = []fleet.ObservedVM{{ID: "fuse-t", UID: "u1", Running: true}}
	f.agent.listing.Exits = []fleet.ExitRecord{{UID: "u0"}}
	f.agent.listing.Foreign = 2
	obs := f.svc.Look(t.Context(), h)
	vms, ok := obs.VMs()
	exits, _ := obs.Exits()
	if !ok || len(vms) != 1 || len(exits) != 1 || obs.Foreign != 2 || obs.ID == "" || obs.HostID != "local" || obs.At.IsZero() {
		t.Errorf("got %+v", obs)
	}
	if s := f.svc.Sighting("local"); s.LastSeen.IsZero() || s.Misses != 0 || s.Foreign != 2 {
		t.Errorf("sighting %+v", s)
	}
}

// A VM that settles while the listing is under way is newer than the look.
func TestLookRevisionIsOlderThanTheCall(t *testing.T) {
	f := setup(t)
	h := f.register(t, nil)
	before, _ := f.store.Head()
	f.agent.listed = func() {
		f.update(t, func(tx *state.Tx) error { return putVM(tx, "fuse-t", "u1") })
	}
	if obs := f.svc.Look(t.Context(), h); obs.Revision != before {
		t.Errorf("revision %d, want %d", obs.Revision, before)
	}
}

func TestLookThatIsNotComplete(t *testing.T) {
	for name, tt := range map[string]struct {
		agent   func(*agent)
		quality fleet.ObservationQuality
		reason  string
	}{
		"adopting":        {func(a *agent) { a.listing.Complete, a.listing.Reason = false, "adopting" }, fleet.Partial, "adopting"},
		"away":            {func(a *agent) { a.err = errAway }, fleet.Unseen, "the host did not answer"},
		"other registry":  {func(a *agent) { a.listing.Facts.RegistryID = "reg2" }, fleet.Unseen, "identity: another registry answers (reg2, not reg1)"},
		"other machine":   {func(a *agent) { a.listing.Facts.MachineID = "m2" }, fleet.Unseen, "identity: another machine answers (m2, not m1)"},
		"nameless":        {func(a *agent) { a.listing.Facts = fleet.HostFacts{MachineID: "m1"} }, fleet.Unseen, "identity: another registry answers (, not reg1)"},
		"refusing tokens": {func(a *agent) { a.err = errRefused }, fleet.Unseen, "the host refused the token"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			h := f.register(t, nil)
			tt.agent(f.agent)
			obs := f.svc.Look(t.Context(), h)
			if _, ok := obs.VMs(); ok || obs.Quality() != tt.quality || obs.Reason() != tt.reason {
				t.Errorf("got %v %q", obs.Quality(), obs.Reason())
			}
			if missed := f.svc.Sighting("local").Misses == 1; missed != (tt.quality == fleet.Unseen) {
				t.Errorf("sighting %+v", f.svc.Sighting("local"))
			}
		})
	}
}

func TestLookAtARemovedHost(t *testing.T) {
	f := setup(t)
	for range DefaultUnreachableLooks {
		if obs := f.svc.Look(t.Context(), fleet.Host{ID: "gone"}); obs.Quality() != fleet.Unseen {
			t.Errorf("got %v", obs.Quality())
		}
	}
	// Removed while it was looked at.
	h := f.register(t, nil)
	f.agent.listed = func() {
		if err := f.svc.Remove(t.Context(), h.ID, "user:a"); err != nil {
			t.Error(err)
		}
	}
	if obs := f.svc.Look(t.Context(), h); obs.Quality() != fleet.Unseen {
		t.Errorf("got %v", obs.Quality())
	}
	if len(f.svc.sightings) != 0 {
		t.Errorf("remembered: %v", f.svc.sightings)
	}
}

func TestLookKeepsFactsFresh(t *testing.T) {
	f := setup(t)
	h := f.register(t, nil)
	f.agent.listing.Facts.Version, f.agent.listing.Facts.Missing = "v2", []string{"no kvm"}
	f.svc.Look(t.Context(), h)
	now, err := f.svc.Get("local")
	if err != nil || now.Facts.Version != "v2" || len(now.Facts.Missing) != 1 {
		t.Errorf("got %+v, %v", now.Facts, err)
	}
	f.svc.Look(t.Context(), now)
	if again, _ := f.svc.Get("local"); again.Revision != now.Revision {
		t.Error("a look without news wrote the row")
	}
}

func TestProvidersAreKept(t *testing.T) {
	f := setup(t)
	f.register(t, nil)
	var first provider.Provider
	for i := range 3 {
		p, err := f.svc.Provider("local")
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = p
		}
		if p != first {
			t.Error("another provider for the same registration")
		}
		// Facts and state change; the way to reach the host does not.
		if err := f.svc.Cordon(t.Context(), "local", "user:a"); err != nil {
			t.Fatal(err)
		}
	}
	for range retiredMax + 3 {
		f.register(t, nil) // each seals the token anew
		if _, err := f.svc.Provider("local"); err != nil {
			t.Fatal(err)
		}
	}
	if open := len(f.agent.opened) - f.agent.closed; open > retiredMax+1 {
		t.Errorf("%d providers are open", open)
	}
}
