// Package deadletters shows what was given up and forgets it when told to.
// Dead letters are written with the transitions they are about; nothing acts on
// them, so forgetting one changes nothing but the list.
package deadletters

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// Store is the part of the state owner that the service uses.
type Store interface {
	View(fn func(*state.ReadTx) error) error
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
}

// Service is the list of dead letters.
type Service struct {
	store Store
	log   *slog.Logger
}

// New makes the service.
func New(store Store, log *slog.Logger) *Service { return &Service{store, log} }

// ID names a dead letter: its kind and its entity.
func ID(d *fleet.DeadLetter) string { return string(d.Kind) + ":" + d.EntityID }

// parse is the inverse of ID.
func parse(id string) (kind fleet.DeadLetterKind, entity string, err error) {
	k, entity, ok := strings.Cut(id, ":")
	if !ok || entity == "" {
		return "", "", fleet.Invalid("id", "KIND:ENTITY", "take the id from the list", "%.80q is not allowed", id)
	}
	return fleet.DeadLetterKind(k), entity, checkKind(k)
}

func checkKind(kind string) error {
	if kind == "" || slices.Contains(fleet.DeadLetterKinds, fleet.DeadLetterKind(kind)) {
		return nil
	}
	var names []string
	for _, k := range fleet.DeadLetterKinds {
		names = append(names, string(k))
	}
	return fleet.Invalid("kind", strings.Join(names, ", "), "choose one of them, or leave it out", "%.40q is not known", kind)
}

// List returns up to limit dead letters with ids above after, by kind and
// entity, and whether there are more. An empty kind is any.
func (s *Service) List(kind, after string, limit int) (list []fleet.DeadLetter, more bool, err error) {
	if err := checkKind(kind); err != nil {
		return nil, false, err
	}
	err = s.store.View(func(tx *state.ReadTx) error {
		for d := range tx.DeadLetters().All() {
			if kind != "" && string(d.Kind) != kind || ID(d) <= after {
				continue
			}
			if more = len(list) == limit; more {
				return nil
			}
			list = append(list, *d)
		}
		return nil
	})
	return list, more, err
}

// Get returns one dead letter.
func (s *Service) Get(id string) (out fleet.DeadLetter, err error) {
	kind, entity, err := parse(id)
	if err != nil {
		return out, err
	}
	err = s.store.View(func(tx *state.ReadTx) error {
		d, ok := tx.DeadLetters().Get(kind, entity)
		if !ok {
			return notFound(id)
		}
		out = *d
		return nil
	})
	return out, err
}

// Purge forgets one dead letter.
func (s *Service) Purge(ctx context.Context, id, actor string) error {
	kind, entity, err := parse(id)
	if err != nil {
		return err
	}
	_, err = s.store.Update(ctx, func(tx *state.Tx) error {
		if _, ok := tx.DeadLetters().Get(kind, entity); !ok {
			return notFound(id)
		}
		return tx.DeleteDeadLetter(kind, entity)
	})
	if err == nil {
		s.log.Info("dead letter purged", slog.String("kind", string(kind)), slog.String("entity", entity), slog.String("actor", actor))
	}
	return err
}

// Filter says which dead letters to forget. Empty fields do not restrict.
type Filter struct {
	Kind      string
	OlderThan time.Duration // not seen again for longer
	All       bool          // needed where nothing else restricts
}

// chunk bounds what one transaction forgets, so that no other waits long.
const chunk = 500

// PurgeAll forgets every dead letter that the filter takes and returns how many
// they were, also when it could not forget all of them.
func (s *Service) PurgeAll(ctx context.Context, f Filter, actor string) (total int, err error) {
	if err := checkKind(f.Kind); err != nil {
		return 0, err
	}
	if f.Kind == "" && f.OlderThan == 0 && !f.All {
		return 0, fleet.Invalid("all", "a kind, an age, or all", "say which, or that all are meant", "is needed where neither kind nor age is given")
	}
	for {
		var n int
		_, err = s.store.Update(ctx, func(tx *state.Tx) error {
			var old []*fleet.DeadLetter
			for d := range tx.DeadLetters().All() {
				if f.takes(d, tx.Now()) {
					old = append(old, d)
				}
				if len(old) == chunk {
					break
				}
			}
			n = len(old)
			for _, d := range old {
				if err := tx.DeleteDeadLetter(d.Kind, d.EntityID); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return total, err
		}
		if total += n; n < chunk {
			break
		}
	}
	s.log.Info("dead letters purged", slog.Int("count", total), slog.String("kind", f.Kind), slog.Duration("older_than", f.OlderThan), slog.String("actor", actor))
	return total, nil
}

func (f Filter) takes(d *fleet.DeadLetter, now time.Time) bool {
	return (f.Kind == "" || string(d.Kind) == f.Kind) && (f.OlderThan == 0 || d.LastSeenAt.Before(now.Add(-f.OlderThan)))
}

func notFound(id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "there is no dead letter %.160q", id)
}
