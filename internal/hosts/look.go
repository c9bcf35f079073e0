package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Look lists what a host has. The state's revision is read before the call is
// sent. A host that answers with another identity than the registered one
// counts as not seen.
func (s *Service) Look(ctx context.Context, host fleet.Host) fleet.Observation {
	look := fleet.Look{HostID: host.ID, ID: uid.New(), At: time.Now()}
	var listing provider.Listing
	var claimErr error
	err := s.pin(ctx, host)
	if err == nil {
		listing, claimErr, err = s.list(ctx, host.ID, &look.Revision)
	}
	look.Took = time.Since(look.At)
	if err == nil {
		err = s.checkIdentity(ctx, host, listing.Facts)
	}
	if _, gone := s.get(host.ID); gone != nil {
		return fleet.NotSeen(look, reasonOf(gone)) // removed meanwhile: nothing to remember
	}
	if err != nil {
		s.missed(host.ID, look.At, err)
		return fleet.NotSeen(look, reasonOf(err))
	}
	s.seen(host.ID, look.At, answered{
		foreign: listing.Foreign, fleets: listing.ForeignFleets, fenced: fencedBy(claimErr),
		complete: listing.Complete && claimErr == nil, compared: s.compare(host.ID, listing.VMs),
	})
	s.changed(host, listing)
	if claimErr != nil {
		return fleet.SeenPartial(look, unclaimed(claimErr))
	}
	if !listing.Complete {
		return fleet.SeenPartial(look, listing.Reason)
	}
	return fleet.SeenComplete(look, listing.VMs, listing.Exits, listing.Foreign)
}

// compare is compare for a host that has come back; nothing is known of others.
func (s *base) compare(hostID string, vms []fleet.ObservedVM) (c compared) {
	if s.Sighting(hostID).settled() {
		return c
	}
	// The closure never fails.
	_ = s.cfg.Store.View(func(tx *state.ReadTx) error {
		c = compare(tx, hostID, vms)
		return nil
	})
	return c
}

// changed has a host asked for its capacity soon when its listing says another
// one than is recorded.
func (s *base) changed(host fleet.Host, l provider.Listing) {
	if l.Capacity.VMCount == 0 {
		return // it did not say
	}
	said := probed{capacity: l.Capacity, facts: l.Facts}
	said.capacity.Arch = fleet.NormalizeArch(said.capacity.Arch)
	if next, err := remerged(host, said); err == nil && !same(host, next) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if n, known := s.sightings[host.ID]; known {
			n.probed = time.Time{}
			s.sightings[host.ID] = n
		}
	}
}

// list claims the host for this term, if that is still to be done, and asks it
// what it has. It looks also where it may not act.
func (s *base) list(ctx context.Context, id string, revision *uint64) (l provider.Listing, claimErr, err error) {
	p, err := s.Provider(id)
	if err != nil {
		return l, nil, err
	}
	claimErr = s.claim(ctx, id, p)
	if errors.Is(claimErr, fleet.ErrNotLeader) || errors.Is(claimErr, provider.ErrNoAnswer) {
		return l, nil, claimErr
	}
	var probed []string
	if err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		*revision, probed = tx.Revision(), probedOn(tx, id)
		return nil
	}); err != nil {
		return l, nil, err
	}
	if v, ok := p.(provider.VerdictLister); ok {
		l, err = v.ListVerdicts(ctx, probed)
	} else {
		l, err = p.List(ctx)
	}
	if err != nil {
		return l, nil, err
	}
	if claimErr == nil {
		// Costs nothing, unless the answer shows that the host does not hold the
		// claim any more.
		claimErr = s.claim(ctx, id, p)
	}
	return l, claimErr, nil
}

// probedOn are the running lives of a host that declared a healthcheck.
func probedOn(tx *state.ReadTx, hostID string) (uids []string) {
	for vm := range tx.VMs().ByHost(hostID) {
		if vm.Probed && vm.State == fleet.VMStateRunning {
			uids = append(uids, vm.UID)
		}
	}
	return uids
}

// checkIdentity holds a host to the registry and machine that it was
// registered with, and pins both at the first answer of one that was
// registered unseen. Other facts are kept fresh as far as that succeeds.
func (s *base) checkIdentity(ctx context.Context, host fleet.Host, facts fleet.HostFacts) error {
	if err := differs(host.Facts, facts); err != nil {
		return err
	}
	if equalFacts(host.Facts, facts) {
		return nil
	}
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		h, ok := tx.Hosts().Get(host.ID)
		if !ok {
			return notFound(host.ID)
		}
		if err := differs(h.Facts, facts); err != nil {
			return err
		}
		if err := refuseTwin(tx, host.ID, facts); err != nil {
			return err
		}
		tellReboot(tx, h, facts)
		row := *h
		row.Facts, row.UpdatedAt = facts, tx.Now()
		// Left open at the registration, when nobody answered.
		row.Backend = cmp.Or(row.Backend, fleet.HostBackend(facts.Driver))
		return tx.PutHost(row)
	})
	switch {
	case err == nil:
		return nil
	case host.Facts.RegistryID == "":
		return fmt.Errorf("identity not pinned: %w", err)
	default:
		s.log.Warn("facts of a host not kept", slog.String("host_id", host.ID), slog.Any("error", err))
		return nil
	}
}

// differs compares identities; an empty one is not known yet.
func differs(registered, answered fleet.HostFacts) error {
	for _, f := range []struct{ what, want, got string }{
		{"registry", registered.RegistryID, answered.RegistryID},
		{"machine", registered.MachineID, answered.MachineID},
	} {
		if f.want != "" && f.want != f.got {
			return fmt.Errorf("identity: another %s answers (%s, not %s)", f.what, f.got, f.want)
		}
	}
	if answered.RegistryID == "" {
		return errors.New("identity: the agent does not name its registry")
	}
	return nil
}

func equalFacts(a, b fleet.HostFacts) bool {
	same := slices.Equal(a.Capabilities, b.Capabilities) && slices.Equal(a.Missing, b.Missing)
	a.Capabilities, b.Capabilities, a.Missing, b.Missing = nil, nil, nil, nil
	return same && reflect.DeepEqual(a, b)
}

// reasonOf is the text of an error for people and records: the message made
// for callers where there is one.
func reasonOf(err error) string {
	if m, ok := callerMessage(err); ok {
		return m
	}
	return err.Error()
}
