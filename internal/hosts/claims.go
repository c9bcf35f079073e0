package hosts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
)

// Rules of the events of claims.
const (
	ruleFenced   = "host_fenced"
	ruleAccepted = "store_accepted"
)

// claim raises the fleet's mark at a host for this term, if that is still to
// be done. Without it the host takes no change, and its answers are not judged
// by: the rows of a copied or older store say nothing about what is there.
func (s *base) claim(ctx context.Context, id string, p provider.Provider) error {
	claimer, ok := p.(provider.Claimer)
	if !ok {
		return nil
	}
	c, err := claimer.Claim(ctx)
	if err != nil {
		return err
	}
	if c.Replaced != 0 {
		s.accepted(id, c)
	}
	return nil
}

// tryClaim claims a host as soon as it is registered, so that one which refuses
// is known before anything is placed there. It returns why it is fenced.
func (s *base) tryClaim(ctx context.Context, id string) string {
	p, err := s.Provider(id)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ProbeTimeout)
	defer cancel()
	return fencedBy(s.claim(ctx, id, p))
}

// accepted says, once per term, that this store has replaced another at a host
// because its operator confirmed it.
func (s *watch) accepted(id string, c provider.Claimed) {
	s.mu.Lock()
	n := s.at(id)
	known := n.accepted == c.Term
	n.accepted = c.Term
	s.sightings[id] = n
	if !known {
		s.tell(hostEvent(id, fleet.EventHostStoreAccepted, fleet.Reason{
			Actor: fleet.ActorOperator, Rule: ruleAccepted,
			Evidence: fmt.Sprintf("--accept-store: term %d of this store replaces term %d of another", c.Term, c.Replaced),
		}, claimPayload{Term: c.Term, Replaced: c.Replaced}))
	}
	s.mu.Unlock()
	if !known {
		s.log.Warn("this state store has replaced another at a host, as its operator confirmed; what it does not know of there are orphans now",
			slog.String("host_id", id), slog.Int64("term", c.Term), slog.Int64("replaced_term", c.Replaced))
	}
}

type claimPayload struct {
	Term     int64 `json:"term"`
	Replaced int64 `json:"replaced_term"`
}

// fencedBy is why a host takes no change from this server, and how to go on;
// empty if it does or that is not known.
func fencedBy(err error) string {
	if !errors.Is(err, fleet.ErrFenced) && !errors.Is(err, fleet.ErrStaleTerm) {
		return ""
	}
	why := reasonOf(err)
	var fe *fleet.Error
	if errors.As(err, &fe) && fe.Details[fleet.DetailRemedy] != "" {
		why += "; " + fe.Details[fleet.DetailRemedy]
	}
	return why
}

// unclaimed is why an answer is not judged by.
func unclaimed(err error) string {
	if why := fencedBy(err); why != "" {
		return "fenced: " + why
	}
	return "not claimed for this term yet: " + reasonOf(err)
}

func fenced(id, why string) fleet.Event {
	return hostEvent(id, fleet.EventHostFenced, fleet.Reason{Actor: fleet.ActorReconcile, Rule: ruleFenced, Evidence: why}, nil)
}

// Fenced is why a host takes no change from this server; empty if it does, or
// if it was not asked yet.
func (s *watch) Fenced(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at(id).Fenced
}

// Purged is what a purge left behind.
type Purged struct {
	Destroyed int
	// Failed could not be cleared yet; the host goes on trying.
	Failed int
}

// Purge destroys the VMs that another fleet left on a host. It is refused for
// this server's own fleet, and, unless force is set, for one that is led.
func (s *Service) Purge(ctx context.Context, id, fleetID, actor string, force bool) (Purged, error) {
	if err := s.cfg.Admit(ctx, actor, "host_purge", map[string]string{"id": id, "fleet_id": fleetID}); err != nil {
		return Purged{}, err
	}
	p, err := s.Provider(id)
	if err != nil {
		return Purged{}, err
	}
	purger, ok := p.(provider.Purger)
	if !ok {
		return Purged{}, fleet.Errorf(fleet.CodeUnimplemented, "host %s cannot purge", id)
	}
	began := time.Now()
	var out Purged
	out.Destroyed, out.Failed, err = purger.PurgeFleet(ctx, fleetID, force)
	if err != nil {
		return out, fmt.Errorf("purge host %s: %w", id, err)
	}
	s.log.Warn("environments of another fleet destroyed on an operator's word", slog.String("host_id", id), slog.String("fleet_id", fleetID),
		slog.String("actor", actor), slog.Int("destroyed", out.Destroyed), slog.Int("failed", out.Failed))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(hostEvent(id, fleet.EventHostPurged, fleet.Reason{
		Actor: actor, Rule: fleet.RuleRequested,
		Evidence: fmt.Sprintf("%d environments of fleet %s destroyed, %d not yet, in %s", out.Destroyed, fleetID, out.Failed, time.Since(began).Round(time.Millisecond)),
	}, nil))
	return out, nil
}
