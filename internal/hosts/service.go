package hosts

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// Admit decides whether an actor may do something to a host.
type Admit = func(ctx context.Context, actor, verb string, params map[string]string) error

// Store is the part of the state owner that hosts uses.
type Store interface {
	View(fn func(*state.ReadTx) error) error
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
}

// Sealer encrypts host tokens.
type Sealer interface {
	Seal(kind, id string, plain []byte) ([]byte, error)
	Open(kind, id string, sealed []byte) ([]byte, error)
}

// SealKindHostToken is the kind of sealed host tokens; the id is the host's.
const SealKindHostToken = "host_token"

// Config wires a Service. All but the timeouts and Admit are needed.
type Config struct {
	Store  Store
	Sealer Sealer
	Logger *slog.Logger
	// NewProvider makes the provider of a host; it must not call the host.
	NewProvider func(host fleet.Host, token string) (provider.Provider, error)
	// Contact meets a host whose certificate is not known and returns its
	// fingerprint, once it has proved that it has the token; "" for one whose
	// certificate this machine trusts. nil: such hosts have to be trusted.
	Contact func(ctx context.Context, url, token string) (fingerprint string, err error)
	// Lost is told of lives that ended without their host; nil: nobody is.
	Lost func(uids []string)
	// Admit is asked before every verb; nil allows all.
	Admit Admit
	// ProbeTimeout bounds one question for a host's capacity; zero is 10 s.
	ProbeTimeout time.Duration
	// ProbeInterval is how often a host is asked for its capacity again, besides
	// when it comes back; zero: not.
	ProbeInterval time.Duration
	// UnreachableLooks is how many looks in a row must miss a host, and
	// UnreachableAfter how long nothing was heard of it, before it counts as
	// unreachable: whichever comes first. Zero is 3, and 90 s.
	UnreachableLooks int
	UnreachableAfter time.Duration
}

// Defaults of Config.
const (
	DefaultProbeInterval    = time.Hour
	DefaultUnreachableLooks = 3
	DefaultUnreachableAfter = 90 * time.Second
)

// Service is the registry of hosts.
type Service struct{ *base }

// base is what the verbs share: what is known of hosts, and the ways to ask
// them.
type base struct {
	cfg  Config
	log  *slog.Logger
	pool *pool
	*watch
}

// New makes the service. What the store holds now counts as left by an earlier
// process.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Sealer == nil || cfg.Logger == nil || cfg.NewProvider == nil {
		return nil, errors.New("hosts config: store, sealer, logger and provider factory are needed")
	}
	cfg.ProbeTimeout = cmp.Or(cfg.ProbeTimeout, 10*time.Second)
	cfg.UnreachableLooks = cmp.Or(cfg.UnreachableLooks, DefaultUnreachableLooks)
	cfg.UnreachableAfter = cmp.Or(cfg.UnreachableAfter, DefaultUnreachableAfter)
	if cfg.Admit == nil {
		cfg.Admit = func(context.Context, string, string, map[string]string) error { return nil }
	}
	s := &Service{&base{cfg: cfg, log: cfg.Logger, pool: newPool()}}
	s.watch = &watch{cfg: &s.cfg, log: cfg.Logger, news: make(chan struct{}, 1), sightings: map[string]sighting{}}
	return s, cfg.Store.View(func(tx *state.ReadTx) error {
		s.inherited = tx.Revision()
		return nil
	})
}

// Close closes every provider.
func (s *Service) Close() error { return s.pool.close() }

// Get returns one host.
func (s *Service) Get(id string) (fleet.Host, error) { return s.get(id) }

func (s *base) get(id string) (fleet.Host, error) {
	var host fleet.Host
	err := s.cfg.Store.View(func(tx *state.ReadTx) error {
		h, ok := tx.Hosts().Get(id)
		if !ok {
			return notFound(id)
		}
		host = *h
		return nil
	})
	return host, err
}

// List returns up to limit hosts with ids above after, by id, and whether
// there are more.
func (s *Service) List(after string, limit int) (hosts []fleet.Host, more bool, err error) {
	err = s.cfg.Store.View(func(tx *state.ReadTx) error {
		for h := range tx.Hosts().All() {
			if h.ID <= after {
				continue
			}
			if len(hosts) == limit {
				more = true
				return nil
			}
			hosts = append(hosts, *h)
		}
		return nil
	})
	return hosts, more, err
}

// Remove forgets a host without environments.
func (s *Service) Remove(ctx context.Context, id, actor string) error {
	if err := s.cfg.Admit(ctx, actor, "host_remove", map[string]string{"id": id}); err != nil {
		return err
	}
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		if _, ok := tx.Hosts().Get(id); !ok {
			return notFound(id)
		}
		if err := refuseOccupied(tx, id); err != nil {
			return err
		}
		if err := tx.DeleteHost(id); err != nil {
			return err
		}
		tx.Emit(fleet.Event{EntityType: "host", EntityID: id, Type: fleet.EventHostRemoved, Reason: askedBy(actor)})
		return nil
	})
	if err != nil {
		return err
	}
	s.log.Info("host removed", slog.String("host_id", id), slog.String("actor", actor))
	s.mu.Lock()
	delete(s.sightings, id)
	s.mu.Unlock()
	return s.pool.drop(id)
}

// Cordon keeps new environments off a host; those it has stay.
func (s *Service) Cordon(ctx context.Context, id, actor string) error {
	return s.setState(ctx, id, actor, fleet.HostCordoned)
}

// Uncordon lets a host take environments again; a drain of it ends.
func (s *Service) Uncordon(ctx context.Context, id, actor string) error {
	return s.setState(ctx, id, actor, fleet.HostActive)
}

func (s *Service) setState(ctx context.Context, id, actor string, to fleet.HostState) error {
	verb, event := "host_uncordon", fleet.EventHostUncordoned
	if to == fleet.HostCordoned {
		verb, event = "host_cordon", fleet.EventHostCordoned
	}
	if err := s.cfg.Admit(ctx, actor, verb, map[string]string{"id": id}); err != nil {
		return err
	}
	changed := false
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		h, ok := tx.Hosts().Get(id)
		if !ok {
			return notFound(id)
		}
		if h.Drain != nil && to == fleet.HostCordoned && h.Drain.Was != to {
			// It takes nothing new already; a cancel must not undo the cordon.
			row, drain := *h, *h.Drain
			drain.Was, row.Drain, row.UpdatedAt = to, &drain, tx.Now()
			tx.Emit(fleet.Event{EntityType: fleet.EntityHost, EntityID: id, Type: event, Reason: askedBy(actor)})
			return tx.PutHost(row)
		}
		if changed = h.State != to && (to == fleet.HostActive || h.State != fleet.HostDraining); !changed {
			return nil
		}
		row := *h
		row.State, row.UpdatedAt = to, tx.Now()
		if row.Drain != nil {
			tx.Emit(fleet.Event{EntityType: fleet.EntityHost, EntityID: id, Type: fleet.EventHostDrainCancelled, Reason: askedBy(actor)})
			row.Drain = nil
		}
		if err := tx.PutHost(row); err != nil {
			return err
		}
		tx.Emit(fleet.Event{EntityType: fleet.EntityHost, EntityID: id, Type: event, Reason: askedBy(actor)})
		return nil
	})
	if err == nil && changed {
		s.log.Info("host state changed", slog.String("host_id", id), slog.String("state", string(to)), slog.String("actor", actor))
	}
	return err
}

// Provider returns the provider of a registered host; it is made when first
// wanted and again when the registration has changed.
func (s *base) Provider(id string) (provider.Provider, error) {
	host, err := s.get(id)
	if err != nil {
		return nil, err
	}
	return s.pool.get(host, func() (provider.Provider, error) {
		token, err := s.token(host)
		if err != nil {
			return nil, err
		}
		return s.cfg.NewProvider(host, token)
	})
}

func (s *base) token(h fleet.Host) (string, error) {
	if len(h.TokenSealed) == 0 {
		return "", nil
	}
	plain, err := s.cfg.Sealer.Open(SealKindHostToken, h.ID, h.TokenSealed)
	if err != nil {
		return "", fleet.Wrap(fleet.CodeInternal, err, "the token of host "+h.ID+" cannot be read").
			With(fleet.DetailHostID, h.ID).With(fleet.DetailRemedy, "start the server with the key that the token was sealed with, or register the host again")
	}
	return string(plain), nil
}

// askedBy is the reason of what somebody asked for.
func askedBy(actor string) *fleet.Reason {
	return &fleet.Reason{Actor: actor, Rule: fleet.RuleRequested}
}

func notFound(id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "host %.80q: %w", id, fleet.ErrHostNotFound).With(fleet.DetailHostID, id)
}
