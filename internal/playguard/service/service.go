package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"time"
	"unicode"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
)

// Config wires a Service. Everything but Leads and MaxStored is needed.
type Config struct {
	Store        records.Store
	Sealer       records.Sealer
	Loop         *loop.Loop
	Hosts        *reach.Hosts
	Installation model.InstallationID
	Policy       model.Policy
	Logger       *slog.Logger
	// Leads returns why this process may not change anything on a marquee; nil:
	// it always may.
	Leads func() error
	// MaxStored bounds the definitions of one owner in bytes, which the server
	// holds in memory; zero is 256 MiB.
	MaxStored int
}

const maxStored = 256 << 20

// Service is Playguard as its callers see it. It is safe for concurrent use.
type Service struct{ Config }

// New makes a Service.
func New(c Config) (*Service, error) {
	if c.Store == nil || c.Sealer == nil || c.Loop == nil || c.Hosts == nil || c.Logger == nil || !c.Installation.Valid() {
		return nil, errors.New("playguard service config: store, sealer, loop, hosts, logger and installation are needed")
	}
	c.MaxStored = cmp.Or(c.MaxStored, maxStored)
	if c.Leads == nil {
		c.Leads = func() error { return nil }
	}
	return &Service{c}, nil
}

// caller is who asks.
type caller struct{ owner, actor string }

func who(ctx context.Context) caller {
	if p, ok := auth.From(ctx); ok {
		return caller{p.Name, p.Actor()}
	}
	return caller{fleet.OwnerMaster, fleet.ActorMaster}
}

func (c caller) reason(evidence string) fleet.Reason {
	return fleet.Reason{Actor: c.actor, Rule: fleet.RuleRequested, Evidence: evidence}
}

// checkName refuses names that people could not tell apart or type.
func checkName(field, name string) error {
	bad := strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0
	if name == "" || len(name) > MaxName || bad || strings.TrimSpace(name) != name {
		return fleet.Invalid(field, fmt.Sprintf("1 to %d bytes of printable text", MaxName), "give another name",
			"%.80q is not one: it is empty, too long, or has characters that cannot be seen", name)
	}
	return nil
}

func notFound(what, id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "there is no %s %.80q", what, id).With(fleet.DetailScope, what)
}

// findMarquee returns a marquee by id or name.
func findMarquee(tx state.Reader, id string) (*records.Marquee, error) {
	if m, ok := records.Marquees.Get(tx, id); ok {
		return m, nil
	}
	for _, m := range records.Marquees.All(tx) {
		if m.Name == id {
			return m, nil
		}
	}
	return nil, notFound("marquee", id)
}

// findPlayground returns a playground that the caller sees, by id or name. Of
// equal names the caller's own is meant.
func findPlayground(ctx context.Context, tx state.Reader, id string) (*records.Playground, error) {
	sees := auth.Visible(ctx)
	if p, ok := records.Playgrounds.Get(tx, id); ok && sees(p.Owner) {
		return p, nil
	}
	var found []*records.Playground
	for _, p := range records.Playgrounds.All(tx) {
		if p.Name != id || !sees(p.Owner) {
			continue
		}
		if p.Owner == who(ctx).owner {
			return p, nil
		}
		found = append(found, p)
	}
	switch len(found) {
	case 0:
		return nil, notFound("playground", id)
	case 1:
		return found[0], nil
	}
	return nil, fleet.Errorf(fleet.CodeConflict, "%d playgrounds are named %q", len(found), id).
		With(fleet.DetailReason, "ambiguous").With(fleet.DetailRemedy, "give the id")
}

// changePlayground changes one that the caller sees.
func (s *Service) changePlayground(ctx context.Context, id string, fn func(tx *state.Tx, p *records.Playground) error) (out records.Playground, err error) {
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		row, err := findPlayground(ctx, tx, id)
		if err != nil {
			return err
		}
		out = *row
		if err := fn(tx, &out); err != nil {
			return err
		}
		out.Revision = tx.Revision() + 1
		out.UpdatedAt = tx.Now()
		return records.PutPlayground(tx, out)
	})
	return out, err
}

// page cuts one page out of a list.
func page[D, T any](all iter.Seq2[string, *D], limit int, keep func(*D) (T, bool)) Page[T] {
	if limit <= 0 {
		limit = DefaultPage
	}
	limit = min(limit, MaxPage)
	var out Page[T]
	last := ""
	for id, d := range all {
		v, ok := keep(d)
		if !ok {
			continue
		}
		if len(out.Items) == limit {
			out.Next = last
			break
		}
		out.Items, last = append(out.Items, v), id
	}
	return out
}

// waitStep is how often Wait asks.
const waitStep = 200 * time.Millisecond

// Wait returns once the playground is in a state that lasts (running, error,
// has_changes, completed, stopped) and no job works on it, or is gone, which is
// a not_found error; or when ctx ends, with its error. An error that is tried
// again by itself does not last.
func (s *Service) Wait(ctx context.Context, id string) (Playground, error) {
	t := time.NewTicker(waitStep)
	defer t.Stop()
	for {
		p, err := s.Playground(ctx, id)
		if err != nil {
			return p, err
		}
		switch p.State {
		case model.StatePending, model.StateInProgress, model.StateStopping, model.StateDestroying:
		default:
			if p.Step == "" {
				return p, nil
			}
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return p, context.Cause(ctx)
		}
	}
}
