package keys

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// Documents is the collection of API keys, by id.
var Documents = state.NewCollection[fleet.APIKey]("api_keys")

// Limits.
const (
	// MaxKeys bounds the keys that are kept, revoked and expired ones included;
	// the oldest of those make room.
	MaxKeys  = 5000
	maxLabel = 100 // bytes
	// MaxLife bounds how far ahead a key may expire.
	MaxLife = 10 * 365 * 24 * time.Hour

	usedEvery  = time.Hour // how exact LastUsedAt is
	queuedUses = 256       // keys whose use waits to be written
)

// Store is the part of the state owner that a Service uses.
type Store interface {
	View(fn func(*state.ReadTx) error) error
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
}

// Service keeps API keys. It is safe for concurrent use.
type Service struct {
	store Store
	log   *slog.Logger
	used  chan string
}

var _ auth.Keys = (*Service)(nil)

// New makes a Service. Run must run beside it for LastUsedAt to move.
func New(store Store, log *slog.Logger) *Service {
	return &Service{store: store, log: log, used: make(chan string, queuedUses)}
}

// CreateRequest asks for a key. Role is needed; an empty Owner is the key's own
// id; a zero ExpiresAt is never.
type CreateRequest struct {
	Label     string
	Role      fleet.Role
	Owner     string
	ExpiresAt time.Time
	Actor     string // who asks
}

// Create makes a key. Its text is in the answer and nowhere else.
func (s *Service) Create(ctx context.Context, req CreateRequest) (key fleet.APIKey, text string, err error) {
	id, text, hash := auth.NewKey()
	key = fleet.APIKey{
		ID: id, Label: req.Label, Role: req.Role, Owner: req.Owner, SecretHash: hash,
		CreatedBy: req.Actor, ExpiresAt: req.ExpiresAt.UTC().Truncate(time.Second),
	}
	if req.ExpiresAt.IsZero() {
		key.ExpiresAt = time.Time{}
	}
	if key.Owner == "" {
		key.Owner = id
	}
	if err := validate(&key, time.Now()); err != nil {
		return fleet.APIKey{}, "", err
	}
	_, err = s.store.Update(ctx, func(tx *state.Tx) error {
		if err := makeRoom(tx); err != nil {
			return err
		}
		key.CreatedAt = tx.Now()
		tx.Emit(event(fleet.EventKeyCreated, &key, req.Actor, "key_created"))
		return Documents.Put(tx, id, &key)
	})
	if err != nil {
		return fleet.APIKey{}, "", fmt.Errorf("create API key: %w", err)
	}
	return key, text, nil
}

func validate(key *fleet.APIKey, now time.Time) error {
	if !slices.Contains(fleet.KeyRoles, key.Role) {
		roles := make([]string, len(fleet.KeyRoles))
		for i, r := range fleet.KeyRoles {
			roles[i] = string(r)
		}
		return fleet.Invalid("role", strings.Join(roles, ", "), "name one of them", "%.40q is none", string(key.Role))
	}
	if !fleet.OwnerRule.MatchString(key.Owner) || key.Owner == fleet.OwnerMaster {
		return fleet.Invalid("owner", fleet.OwnerRule.String()+", and not "+fleet.OwnerMaster, "leave it out for an owner of the key's own",
			"%.100q is no owner that a key can act for", key.Owner)
	}
	bad := func(r rune) bool { return !unicode.IsPrint(r) }
	if len(key.Label) > maxLabel || !utf8.ValidString(key.Label) || strings.ContainsFunc(key.Label, bad) {
		return fleet.Invalid("label", strconv.Itoa(maxLabel)+" bytes of printable text", "shorten it", "has %d bytes or characters that do not print", len(key.Label))
	}
	if !key.ExpiresAt.IsZero() && (!key.ExpiresAt.After(now) || key.ExpiresAt.After(now.Add(MaxLife))) {
		return fleet.Invalid("expires_at", "within ten years from now", "leave it out for a key that does not expire", "is not in that time")
	}
	return nil
}

// makeRoom forgets the oldest key that is over, once there are too many.
func makeRoom(tx *state.Tx) error {
	n := 0
	var oldest *fleet.APIKey
	for _, k := range Documents.All(tx) {
		n++
		if _, ok := k.Usable(tx.Now()); !ok && (oldest == nil || k.CreatedAt.Before(oldest.CreatedAt)) {
			oldest = k
		}
	}
	switch {
	case n < MaxKeys:
		return nil
	case oldest != nil:
		return Documents.Delete(tx, oldest.ID)
	}
	limit := strconv.Itoa(MaxKeys)
	return fleet.Errorf(fleet.CodeConflict, "there are %s API keys already", limit).
		With(fleet.DetailLimit, limit).With(fleet.DetailUsage, strconv.Itoa(n)).With(fleet.DetailRemedy, "revoke some: fuse key revoke")
}

// Revoke ends a key at once; what it made stays its owner's. Revoking it again
// changes nothing.
func (s *Service) Revoke(ctx context.Context, id, actor string) error {
	_, err := s.store.Update(ctx, func(tx *state.Tx) error {
		old, ok := Documents.Get(tx, id)
		if !ok {
			return notFound(id)
		}
		if !old.RevokedAt.IsZero() {
			return nil
		}
		key := *old
		key.RevokedAt, key.RevokedBy = tx.Now(), actor
		tx.Emit(event(fleet.EventKeyRevoked, &key, actor, "key_revoked"))
		return Documents.Put(tx, id, &key)
	})
	if err != nil {
		return fmt.Errorf("revoke API key: %w", err)
	}
	return nil
}

// Get returns a key.
func (s *Service) Get(id string) (key fleet.APIKey, err error) {
	err = s.store.View(func(tx *state.ReadTx) error {
		k, ok := Documents.Get(tx, id)
		if !ok {
			return notFound(id)
		}
		key = *k
		return nil
	})
	return key, err
}

// List returns all keys, the newest first.
func (s *Service) List() (list []fleet.APIKey, err error) {
	err = s.store.View(func(tx *state.ReadTx) error {
		for _, k := range Documents.All(tx) {
			list = append(list, *k)
		}
		return nil
	})
	slices.SortFunc(list, func(a, b fleet.APIKey) int {
		if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(b.ID, a.ID)
	})
	return list, err
}

// Key implements auth.Keys.
func (s *Service) Key(id string) (fleet.APIKey, bool) {
	key, err := s.Get(id)
	return key, err == nil
}

// Used implements auth.Keys: it notes that a key was used, if that has not been
// noted within the hour. It never waits; a note too many is dropped.
func (s *Service) Used(id string) {
	key, ok := s.Key(id)
	if !ok || time.Since(key.LastUsedAt) < usedEvery {
		return
	}
	select {
	case s.used <- id:
	default:
	}
}

// Run writes down which keys were used until ctx is done.
func (s *Service) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case id := <-s.used:
			if err := s.note(ctx, id); err != nil && ctx.Err() == nil && !errors.Is(err, fleet.ErrStoreUnavailable) {
				s.log.Warn("use of an API key not noted", "key_id", id, "error", err)
			}
		}
	}
}

// note looks first, so that the many notes of a busy moment are one write.
func (s *Service) note(ctx context.Context, id string) error {
	if key, ok := s.Key(id); !ok || time.Since(key.LastUsedAt) < usedEvery {
		return nil
	}
	_, err := s.store.Update(ctx, func(tx *state.Tx) error {
		old, ok := Documents.Get(tx, id)
		if !ok || tx.Now().Sub(old.LastUsedAt) < usedEvery {
			return nil
		}
		key := *old
		key.LastUsedAt = tx.Now().Truncate(time.Minute)
		return Documents.Put(tx, id, &key)
	})
	return err
}

func event(kind string, key *fleet.APIKey, actor, rule string) fleet.Event {
	payload, err := json.Marshal(map[string]string{"label": key.Label, "role": string(key.Role), "owner": key.Owner})
	if err != nil {
		payload = nil // strings always encode
	}
	return fleet.Event{
		EntityType: fleet.EntityKey, EntityID: key.ID, Type: kind, Payload: payload, Reason: &fleet.Reason{Actor: actor, Rule: rule},
	}
}

func notFound(id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "API key %.80q: %w", id, fleet.ErrKeyNotFound)
}
