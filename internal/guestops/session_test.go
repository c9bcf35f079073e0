package guestops

import (
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

type reachable struct{ provider.Environment }

func (reachable) Guest() guestwire.Surface { return guestwire.Surface{} }

type anyProvider = provider.Provider

type opened struct {
	anyProvider
	refs []provider.Ref
}

func (o *opened) Open(ref provider.Ref) provider.Environment {
	o.refs = append(o.refs, ref)
	return reachable{}
}

func (o *opened) Provider(string) (provider.Provider, error) { return o, nil }

// TestWhatIsLeft opens environments that do not run, for what is left of them
// and for nothing else.
func TestWhatIsLeft(t *testing.T) {
	host := &opened{}
	f := setup(t, func(c *Config) { c.Providers = host })
	f.put(t, "fuse-going", fleet.VMStateProvisioning, fleet.VMStateRunning, fleet.VMStateDestroying)
	if _, err := f.store.Update(t.Context(), func(tx *state.Tx) error {
		for _, l := range []fleet.Life{
			{UID: "u1", VMID: "fuse-past", HostID: "local", Owner: "ann", State: fleet.VMStateDestroyed, EndedAt: time.Now().Add(-time.Hour), EndedSeq: 1},
			{UID: "u2", VMID: "fuse-past", HostID: "local", Owner: "ann", State: fleet.VMStateDestroyed, EndedAt: time.Now(), EndedSeq: 2},
			{UID: "u3", VMID: "fuse-nowhere", Owner: "ann", State: fleet.VMStateFailed, EndedAt: time.Now(), EndedSeq: 3},
			{UID: "u4", VMID: "fuse-t", HostID: "local", Owner: "ann", State: fleet.VMStateDestroyed, EndedAt: time.Now(), EndedSeq: 4},
		} {
			if err := tx.PutLife(l); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	ann := auth.With(t.Context(), auth.Principal{Name: "ann", Role: fleet.RoleAdmin})
	bob := auth.With(t.Context(), auth.Principal{Name: "bob", Role: fleet.RoleUser})
	for id, uid := range map[string]string{"fuse-past": "u2", "fuse-going": "u-fuse-going", "fuse-t": "u-fuse-t"} {
		s, err := f.svc.Open(ann, id, Use{Verb: "console.read", Left: true})
		if err != nil {
			t.Errorf("%s: %v", id, err)
			continue
		}
		if got := host.refs[len(host.refs)-1]; got.UID != uid || got.ID != id {
			t.Errorf("%s: the host was asked for %+v", id, got)
		}
		if id != "fuse-t" {
			if err := s.Explain(ann, fleet.Errorf(fleet.CodeNotFound, "no such VM")); fleet.CodeOf(err) != fleet.CodeNotFound {
				t.Errorf("%s: %v", id, err)
			}
		}
		s.Close()
		if _, err := f.svc.Open(bob, id, Use{Verb: "console.read", Left: true}); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Errorf("%s for another: %v", id, err)
		}
	}
	for id, code := range map[string]fleet.Code{"fuse-nowhere": fleet.CodeNotFound, "fuse-never": fleet.CodeNotFound} {
		if _, err := f.svc.Open(ann, id, Use{Verb: "console.read", Left: true}); fleet.CodeOf(err) != code {
			t.Errorf("%s: %v", id, err)
		}
	}
	if _, err := f.svc.Open(ann, "fuse-past", Use{Verb: "files.read"}); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("another use of one that has ended: %v", err)
	}
	if _, err := f.svc.Open(ann, "fuse-going", Use{Verb: "files.read"}); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("another use of one that ends: %v", err)
	}
}
