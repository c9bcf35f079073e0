package providertest

import (
	"errors"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
)

// testStores has several stores claim the host for one fleet: the next term of
// the same store, a copy, an older backup, and one that was confirmed.
func testStores(s *suite) {
	ref := newRef("suite-stores")
	s.fleet.Change(func(f *provider.Fence) { f.Revision = 50 }, false)
	s.create(ref)

	backup := s.fleet.At(20) // knows the term, but not how far it went
	backup.earlier[1] = provider.Proof{Token: backup.earlier[1].Token, Revision: 49}
	s.wantFenced("an older backup", backup, "older_store")

	ancient := s.fleet.At(21)
	delete(ancient.earlier, 1)
	s.wantFenced("a backup from before the term", ancient, "older_store")

	moved := s.fleet.At(22)
	moved.Change(func(f *provider.Fence) { f.Fingerprint = "store-2" }, false)
	s.wantFenced("a copy", moved, "other_store")

	forgetful := s.fleet.At(23)
	forgetful.Change(func(f *provider.Fence) { f.Volatile = true }, false)
	s.wantFenced("a store in memory", forgetful, "other_kind")

	// None of them locked the store out, which goes on to its next term.
	s.wantListed("after refused claims", s.p, ref.UID)
	next := s.fleet.At(10)
	s.p, s.fleet = s.Connect(next), next
	s.wantEcho(s.p.Open(ref))
	second := newRef("suite-stores-2")
	s.create(second)

	// The copy takes over on the operator's word, and only once.
	moved.Change(nil, true)
	copied := s.Connect(moved)
	c, err := copied.(provider.Claimer).Claim(s.ctx)
	if err != nil {
		s.t.Fatalf("claim of a confirmed store: %v", err)
	}
	if c.Term != 22 || c.Replaced != 10 {
		s.t.Errorf("claimed %+v", c)
	}
	if err := copied.Destroy(s.ctx, again(second)); err != nil {
		s.t.Errorf("destroy by a confirmed store: %v", err)
	}
	s.wantFenced("the store that was replaced", next, "other_store")
	if err := s.p.Destroy(s.ctx, again(ref)); !errors.Is(err, fleet.ErrFenced) {
		s.t.Errorf("destroy by the store that was replaced: %v", err)
	}
	s.wantListed("after a refused destroy", s.p, ref.UID)
	s.p, s.fleet = copied, moved
	s.destroy(ref)
}

func (s *suite) wantListed(when string, p provider.Provider, uids ...string) {
	s.t.Helper()
	if got := s.listed(p); !slices.Equal(got, uids) {
		s.t.Errorf("%s the host lists %v, want %v", when, got, uids)
	}
}

// wantFenced expects that a store may look and not act, and is told why.
func (s *suite) wantFenced(who string, f *Fleet, reason string) {
	s.t.Helper()
	p := s.Connect(f)
	before := s.listed(p)
	calls := map[string]error{"claim": s.claim(p)}
	_, calls["create"] = p.Create(s.ctx, s.request(newRef("suite-fenced")))
	for _, uid := range before {
		calls["destroy "+uid] = p.Destroy(s.ctx, again(provider.Ref{ID: "suite-stores", UID: uid}))
	}
	for call, err := range calls {
		var fe *fleet.Error
		if !errors.Is(err, fleet.ErrFenced) || !errors.As(err, &fe) || fe.Code != fleet.CodeConflict {
			s.t.Errorf("%s by %s: %v", call, who, err)
			continue
		}
		if fe.Details[fleet.DetailReason] != reason || !strings.Contains(fe.Details[fleet.DetailRemedy], "--accept-store") {
			s.t.Errorf("%s by %s: details %v", call, who, fe.Details)
		}
		if strings.Contains(err.Error(), f.now.ClaimToken) {
			s.t.Errorf("the error shows the token: %v", err)
		}
	}
	s.wantListed("after "+who, p, before...)
}

// testVolatile has the stores of one volatile fleet follow each other without
// any proof.
func testVolatile(s *suite) {
	s.fleet.Change(func(f *provider.Fence) { f.Volatile = true }, false)
	ref := newRef("suite-volatile")
	s.create(ref)
	restarted := s.fleet.At(5)
	restarted.Change(func(f *provider.Fence) { f.Fingerprint = "memory-2" }, false)
	restarted.earlier = nil
	first := s.p
	s.p = s.Connect(restarted)
	s.wantListed("to the next start", s.p, ref.UID)
	s.destroy(ref)
	if _, err := first.Create(s.ctx, s.request(newRef("suite-volatile-2"))); !errors.Is(err, fleet.ErrStaleTerm) {
		s.t.Errorf("create by the earlier start: %v", err)
	}
	s.fleet = restarted
}

// testSharedHost has two fleets share a host: neither sees the other's VMs nor
// can touch them, and only an operator's purge ends them.
func testSharedHost(s *suite) {
	mine, theirs := newRef("suite-shared"), newRef("suite-shared")
	s.create(mine)
	other := NewFleet()
	p := s.Connect(other)
	if _, err := p.Create(s.ctx, s.request(theirs)); err != nil {
		s.t.Fatal(err)
	}
	l, err := p.List(s.ctx)
	if err != nil || len(l.VMs) != 1 || l.VMs[0].UID != theirs.UID || l.Foreign != 1 || l.ForeignFleets[s.fleet.now.FleetID] != 1 {
		s.t.Errorf("listing of the other fleet: %+v, %v", l, err)
	}
	if _, err := p.Get(s.ctx, mine); err == nil {
		s.t.Error("another fleet's VM can be looked at")
	}
	s.wantCode("destroy of another fleet's VM", p.Destroy(s.ctx, again(mine)), fleet.CodeForbidden)
	_, err = Exec(s.ctx, p.Open(mine), fleet.ExecSpec{Argv: []string{"true"}}, 1)
	s.wantCode("exec in another fleet's VM", err, fleet.CodeForbidden)
	purger, ok := s.p.(provider.Purger)
	if !ok {
		s.t.Fatal("the provider cannot purge")
	}
	_, _, err = purger.PurgeFleet(s.ctx, s.fleet.now.FleetID, true)
	s.wantCode("purge of one's own fleet", err, fleet.CodeInvalidArgument)
	_, _, err = purger.PurgeFleet(s.ctx, other.now.FleetID, false)
	s.wantCode("purge of a fleet that is led", err, fleet.CodeConflict)
	if destroyed, failed, err := purger.PurgeFleet(s.ctx, other.now.FleetID, true); err != nil || destroyed != 1 || failed != 0 {
		s.t.Errorf("purge: %d, %d, %v", destroyed, failed, err)
	}
	s.wantListed("after the purge", p)
	s.wantListed("after the purge", s.p, mine.UID)
	s.destroy(mine)
}
