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

// unreachableAfter is how many looks in a row must miss a host before
// placement leaves it out: one lost packet moves nothing.
const unreachableAfter = 2

// Sighting is what this process knows of a host's reachability. It is never
// stored and starts empty with the process.
type Sighting struct {
	LastSeen time.Time // zero: not yet
	// MissedSince is when the looks that all missed began; zero: seen last.
	MissedSince time.Time
	Misses      int
	Reason      string // of the last miss
	// Foreign is how many VMs of other control planes the last look counted.
	Foreign int
}

// Look lists what a host has. The state's revision is read before the call is
// sent. A host that answers with another identity than the registered one
// counts as not seen.
func (s *Service) Look(ctx context.Context, host fleet.Host) fleet.Observation {
	look := fleet.Look{HostID: host.ID, ID: uid.New(), At: time.Now()}
	listing, err := s.list(ctx, host.ID, &look.Revision)
	look.Took = time.Since(look.At)
	if err == nil {
		err = s.checkIdentity(ctx, host, listing.Facts)
	}
	if _, gone := s.Get(host.ID); gone != nil {
		return fleet.NotSeen(look, reasonOf(gone)) // removed meanwhile: nothing to remember
	}
	if err != nil {
		s.missed(host.ID, look.At, reasonOf(err))
		return fleet.NotSeen(look, reasonOf(err))
	}
	s.seen(host.ID, look.At, listing.Foreign)
	if !listing.Complete {
		return fleet.SeenPartial(look, listing.Reason)
	}
	return fleet.SeenComplete(look, listing.VMs, listing.Exits, listing.Foreign)
}

func (s *Service) list(ctx context.Context, id string, revision *uint64) (provider.Listing, error) {
	p, err := s.Provider(id)
	if err != nil {
		return provider.Listing{}, err
	}
	if err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		*revision = tx.Revision()
		return nil
	}); err != nil {
		return provider.Listing{}, err
	}
	return p.List(ctx)
}

// checkIdentity holds a host to the registry and machine that it was
// registered with, and pins both at the first answer of one that was
// registered unseen. Other facts are kept fresh as far as that succeeds.
func (s *Service) checkIdentity(ctx context.Context, host fleet.Host, facts fleet.HostFacts) error {
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

func (s *Service) seen(id string, at time.Time, foreign int) {
	s.mu.Lock()
	before := s.sightings[id]
	s.sightings[id] = Sighting{LastSeen: at, Foreign: foreign}
	s.mu.Unlock()
	if foreign != before.Foreign {
		s.log.Warn("host has VMs of other control planes, which are left alone", slog.String("host_id", id), slog.Int("foreign", foreign))
	}
	if before.Misses >= unreachableAfter {
		s.log.Info("host reachable again", slog.String("host_id", id), slog.Duration("missed", at.Sub(before.MissedSince)))
	}
}

func (s *Service) missed(id string, at time.Time, reason string) {
	s.mu.Lock()
	now := s.sightings[id]
	now.Misses++
	now.Reason = reason
	if now.MissedSince.IsZero() {
		now.MissedSince = at
	}
	s.sightings[id] = now
	s.mu.Unlock()
	if now.Misses == unreachableAfter {
		s.log.Warn("host unreachable", slog.String("host_id", id), slog.String("reason", reason))
	}
}

// Sighting says when a host was last seen by this process.
func (s *Service) Sighting(id string) Sighting {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sightings[id]
}

// Unreachable names the hosts that several looks in a row have missed, with
// the last reason; placement leaves them out.
func (s *Service) Unreachable() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out map[string]string
	for id, sight := range s.sightings {
		if sight.Misses >= unreachableAfter {
			if out == nil {
				out = map[string]string{}
			}
			out[id] = sight.Reason
		}
	}
	return out
}

// reasonOf is the text of an error for people and records: the message made
// for callers where there is one.
func reasonOf(err error) string {
	if m, ok := callerMessage(err); ok {
		return m
	}
	return err.Error()
}
