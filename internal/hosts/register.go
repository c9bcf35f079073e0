package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

// RegisterRequest is a machine to take into the fleet, or to take in again
// with another address, token, certificate, labels or capacity.
type RegisterRequest struct {
	ID         string
	Owner      string // the authenticated principal
	Actor      string
	Evidence   string // of the reason that events give; may be empty
	URL        string
	Token      string
	CertSHA256 string
	Region     string
	Backend    fleet.HostBackend // empty: what the agent says
	Labels     map[string]string
	Capacity   fleet.HostCapacity // zero fields: what the agent says
	// Pinned refuses another certificate or address for an id that is there:
	// what a machine says of itself must not move a host.
	Pinned bool
}

// ProbeError is a registration refused because of what its agent answered, or
// did not: the fault is neither the caller's nor the server's. Its code is
// that of the error inside.
type ProbeError struct{ err *fleet.Error }

func (e *ProbeError) Error() string { return e.err.Error() }

// Unwrap returns the error for callers.
func (e *ProbeError) Unwrap() error { return e.err }

// Register takes a host in. Its agent is asked first: declared capacity wins
// over probed, with a warning; a contradiction of architecture, backend or
// identity is refused. A host registered again keeps its state, its creation
// time and its environments.
func (s *Service) Register(ctx context.Context, req RegisterRequest) (fleet.Host, error) {
	if err := s.cfg.Admit(ctx, req.Actor, "host_register", map[string]string{"id": req.ID}); err != nil {
		return fleet.Host{}, err
	}
	if err := req.validate(); err != nil {
		return fleet.Host{}, err
	}
	probe, err := s.probe(ctx, req)
	if err != nil {
		return fleet.Host{}, err
	}
	capacity, warnings, err := merge(req, probe)
	if err != nil {
		return fleet.Host{}, err
	}
	backend, err := pickBackend(req.Backend, probe)
	if err != nil {
		return fleet.Host{}, err
	}
	if probe.cert != "" {
		req.CertSHA256 = probe.cert
	}
	sealed, err := s.cfg.Sealer.Seal(SealKindHostToken, req.ID, []byte(req.Token))
	if err != nil {
		return fleet.Host{}, fmt.Errorf("seal host token: %w", err)
	}
	row := fleet.Host{
		ID: req.ID, Owner: req.Owner, URL: req.URL, TokenSealed: sealed, CertSHA256: req.CertSHA256, Region: req.Region,
		Backend: backend, Labels: maps.Clone(req.Labels), State: fleet.HostActive,
		Facts: probe.facts, Capacity: capacity, Declared: &req.Capacity, Warnings: warnings,
	}
	host, err := s.put(ctx, row, fleet.Reason{Actor: req.Actor, Rule: fleet.RuleRequested, Evidence: req.Evidence}, req.Pinned)
	if err == nil && probe.err == nil {
		before := s.Sighting(host.ID)
		s.seen(host.ID, host.UpdatedAt, answered{
			foreign: before.Foreign, fleets: before.ForeignFleets, fenced: s.tryClaim(ctx, host.ID),
		})
		s.asked(host.ID, host.UpdatedAt)
	}
	return host, err
}

// put writes the row over the one there may be, keeping what is not the
// registration's to say.
func (s *base) put(ctx context.Context, row fleet.Host, why fleet.Reason, pinned bool) (fleet.Host, error) {
	s.holdForgotten(row.ID, row.Facts)
	commit, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		row.CreatedAt, row.UpdatedAt = tx.Now(), tx.Now()
		if old, ok := tx.Hosts().Get(row.ID); ok {
			if err := keep(&row, old); err != nil {
				return err
			}
			if pinned {
				if err := samePlace(row, old); err != nil {
					return err
				}
			}
			tellReboot(tx, old, row.Facts)
			if old.CertSHA256 != "" && row.CertSHA256 != "" && old.CertSHA256 != row.CertSHA256 {
				tx.Emit(repinned(row.ID, old.CertSHA256, row.CertSHA256, fleet.Reason{Actor: why.Actor, Rule: why.Rule, Evidence: "registered again"}))
			}
		}
		if err := refuseTwin(tx, row.ID, row.Facts); err != nil {
			return err
		}
		if err := tx.PutHost(row); err != nil {
			return err
		}
		tx.Emit(fleet.Event{EntityType: fleet.EntityHost, EntityID: row.ID, Type: fleet.EventHostRegistered, Reason: &why})
		return takeBack(tx, row.Facts)
	})
	if err != nil {
		s.letGo(row.ID)
		return fleet.Host{}, err
	}
	row.Revision = commit.Revision
	s.log.Info("host registered", slog.String("host_id", row.ID), slog.String("backend", string(row.Backend)), slog.String("actor", why.Actor))
	if host, err := s.get(row.ID); err == nil {
		return host, nil
	}
	return row, nil
}

// samePlace refuses a registration that would move a host to another holder.
func samePlace(row fleet.Host, old *fleet.Host) error {
	if old.CertSHA256 == row.CertSHA256 && (old.CertSHA256 != "" || old.URL == row.URL) {
		return nil
	}
	return fleet.Errorf(fleet.CodeConflict, "host %s is registered with another certificate or address", row.ID).
		With(fleet.DetailHostID, row.ID).
		With(fleet.DetailRemedy, "join under another id; if it is the same machine, an operator runs fuse host repin, or registers it again")
}

// keep carries over what a new registration of the same host must not reset.
func keep(row *fleet.Host, old *fleet.Host) error {
	if row.Facts.RegistryID == "" {
		// The agent says nothing now; what it said before still holds.
		row.Facts, row.Backend = old.Facts, cmp.Or(row.Backend, old.Backend)
		row.Capacity.Arch = cmp.Or(row.Capacity.Arch, old.Capacity.Arch)
	} else if err := differs(old.Facts, row.Facts); err != nil {
		return fleet.Errorf(fleet.CodeConflict, "host %s is registered with another machine: %w", row.ID, err).
			With(fleet.DetailHostID, row.ID).With(fleet.DetailRemedy, "choose another id, or remove the host first")
	}
	row.State, row.Drain, row.CreatedAt, row.Owner = old.State, old.Drain, old.CreatedAt, old.Owner
	if row.URL == old.URL {
		row.CertSHA256 = cmp.Or(row.CertSHA256, old.CertSHA256) // nobody showed another
	}
	return nil
}

// refuseTwin keeps one agent from serving under two ids: its environments
// would be counted, and destroyed, twice.
func refuseTwin(tx *state.Tx, id string, facts fleet.HostFacts) error {
	if facts.RegistryID == "" {
		return nil
	}
	for h := range tx.Hosts().All() {
		if h.ID != id && h.Facts.RegistryID == facts.RegistryID {
			return fleet.Errorf(fleet.CodeConflict, "this agent is registered already, as host %s", h.ID).
				With(fleet.DetailHostID, h.ID).With(fleet.DetailRemedy, "register it under that id, or remove that host first")
		}
	}
	return nil
}

// refuseOccupied keeps a host with environments, whatever their state.
func refuseOccupied(tx *state.Tx, id string) error {
	var names []string
	for vm := range tx.VMs().ByHost(id) {
		names = append(names, vm.ID)
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	shown := names[:min(len(names), maxNamed)]
	return fleet.Errorf(fleet.CodeConflict, "host %s: %w: %d, among them %q", id, fleet.ErrHostHasVMs, len(names), shown).
		With(fleet.DetailHostID, id).With(fleet.DetailUsage, fmt.Sprintf("%d environments", len(names))).
		With(fleet.DetailRemedy, "empty it first: fuse host drain "+id+"; or, if it will never come back: fuse host rm --forget "+id)
}

// maxNamed bounds the environments that a refusal names.
const maxNamed = 20

// probed is what an agent said, or why it said nothing.
type probed struct {
	capacity fleet.HostCapacity
	facts    fleet.HostFacts
	cert     string // the fingerprint that it proved, where none was given
	err      error
}

// probe asks the agent before anything is stored. Only an agent that refuses
// the token is an error by itself: whether silence is one depends on what the
// caller declared.
func (s *base) probe(ctx context.Context, req RegisterRequest) (out probed, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.ProbeTimeout)
	defer cancel()
	if req.CertSHA256 == "" && s.meets(req.URL, req.Token) {
		out.cert, out.err = s.cfg.Contact(ctx, req.URL, req.Token)
		req.CertSHA256 = out.cert
	}
	if out.err == nil {
		out, err = s.ask(ctx, req, out)
	}
	switch {
	case err != nil:
		return probed{}, err
	case errors.Is(out.err, provider.ErrUnauthorized):
		return probed{}, &ProbeError{fleet.Wrap(fleet.CodeUnauthorized, out.err, fmt.Sprintf("the agent of host %s refuses the token", req.ID)).
			With(fleet.DetailHostID, req.ID).With(fleet.DetailRemedy, "give the token that fuse hostd was started with")}
	case out.err == nil:
		out.capacity.Arch = fleet.NormalizeArch(out.capacity.Arch)
		if out.facts.RegistryID == "" {
			return probed{}, &ProbeError{fleet.Errorf(fleet.CodeUnavailable, "the agent of host %s does not name its registry", req.ID).
				With(fleet.DetailHostID, req.ID).With(fleet.DetailRemedy, "check that the URL is that of a fuse hostd")}
		}
	default:
		out.facts = fleet.HostFacts{}
	}
	return out, nil
}

// meets reports whether a host without a known certificate is met first. What
// proves it is the token: without one, anybody could.
func (s *base) meets(url, token string) bool {
	return s.cfg.Contact != nil && token != "" && strings.HasPrefix(url, "https://")
}

func (s *base) ask(ctx context.Context, req RegisterRequest, out probed) (_ probed, err error) {
	p, err := s.cfg.NewProvider(fleet.Host{ID: req.ID, URL: req.URL, CertSHA256: req.CertSHA256}, req.Token)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	prober, ok := p.(provider.CapacityProber)
	if !ok {
		return probed{err: errors.New("the agent cannot tell its capacity")}, nil
	}
	out.capacity, out.facts, out.err = prober.Capacity(ctx)
	return out, nil
}

func callerMessage(err error) (string, bool) {
	var fe *fleet.Error
	if errors.As(err, &fe) {
		return fe.Message, true
	}
	return "", false
}
