package githook

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/branch"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// SealKind is a hook's secret.
const SealKind = "git_hook_secret"

// Limits of hooks.
const (
	MaxPerOwner = 100
	minSecret   = 16
	maxSecret   = 200
	keptIDs     = 50 // deliveries
	perMinute   = 60 // messages of a hook
)

// Hook is a hook's document.
type Hook struct {
	ID           string    `json:"id"`
	Owner        string    `json:"owner"`
	Repository   string    `json:"repository"`
	SecretSealed []byte    `json:"secret_sealed"`
	Deliveries   []string  `json:"deliveries,omitempty"` // heard last, oldest first
	HeardAt      time.Time `json:"heard_at,omitzero"`
	CreatedAt    time.Time `json:"created_at"`
}

// Hooks is the collection.
var Hooks = state.NewCollection[Hook]("git_hooks")

// Service hears and keeps hooks. It is safe for concurrent use.
type Service struct {
	Store  records.Store
	Sealer records.Sealer
	// Check has playgrounds looked at now; Seek has previews look for branches.
	Check func(rows ...records.Playground)
	Seek  func(owner, repository string)

	mu   sync.Mutex
	used map[string]window
}

// window counts the messages of a minute.
type window struct {
	from time.Time
	n    int
}

// Add makes a hook; without a secret one is made. It is returned here and never again.
func (s *Service) Add(ctx context.Context, owner, repository, secret string) (h Hook, shown string, err error) {
	if h.Repository, err = branch.Address(repository); err != nil {
		return h, "", err
	}
	if secret == "" {
		raw := make([]byte, 32)
		if _, err := rand.Read(raw); err != nil {
			return h, "", fmt.Errorf("make a secret: %w", err)
		}
		secret = base64.RawURLEncoding.EncodeToString(raw)
	}
	if len(secret) < minSecret || len(secret) > maxSecret {
		return h, "", fleet.Invalid("secret", fmt.Sprintf("%d to %d bytes", minSecret, maxSecret), "leave it out and one is made", "has %d bytes", len(secret))
	}
	h.ID, h.Owner = strings.ToLower(uid.New()), owner
	if h.SecretSealed, err = s.Sealer.Seal(SealKind, h.ID, []byte(secret)); err != nil {
		return h, "", fmt.Errorf("seal a secret: %w", err)
	}
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		n := 0
		for _, o := range Hooks.All(tx) {
			if o.Owner == owner {
				n++
			}
		}
		if n >= MaxPerOwner {
			return fleet.Errorf(fleet.CodeConflict, "%s has %d git hooks", owner, n).
				With(fleet.DetailLimit, fmt.Sprint(MaxPerOwner)).With(fleet.DetailRemedy, "remove one that is not used: fuse playground git-hook ls lists them")
		}
		h.CreatedAt = tx.Now()
		return Hooks.Put(tx, h.ID, &h)
	})
	return h, secret, err
}

// List lists the hooks that sees lets through.
func (s *Service) List(sees func(owner string) bool) (out []Hook, err error) {
	err = s.Store.View(func(tx *state.ReadTx) error {
		for _, h := range Hooks.All(tx) {
			if sees(h.Owner) {
				out = append(out, *h)
			}
		}
		return nil
	})
	return out, err
}

// Remove forgets a hook.
func (s *Service) Remove(ctx context.Context, sees func(owner string) bool, id string) error {
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		h, ok := Hooks.Get(tx, id)
		if !ok || !sees(h.Owner) {
			return fleet.Errorf(fleet.CodeNotFound, "there is no git hook %.80q", id).With(fleet.DetailScope, "git hook")
		}
		return Hooks.Delete(tx, id)
	})
	return err
}

// errUnknown is the one answer to whoever does not know a hook's secret.
func errUnknown() error {
	return fleet.Errorf(fleet.CodeUnauthorized, "there is no such hook, or the message is not signed with its secret")
}

// Hear takes a message. It answers what it was, and how many playgrounds are
// looked at because of it.
func (s *Service) Hear(ctx context.Context, id string, header http.Header, body []byte) (p Push, playgrounds int, err error) {
	var h Hook
	if err := s.Store.View(func(tx *state.ReadTx) error {
		if row, ok := Hooks.Get(tx, id); ok {
			h = *row
		}
		return nil
	}); err != nil {
		return p, 0, err
	}
	secret := []byte("nobody knows this hook")
	if h.ID != "" {
		if secret, err = s.Sealer.Open(SealKind, h.ID, h.SecretSealed); err != nil {
			return p, 0, fmt.Errorf("secret of git hook %s: %w", h.ID, err)
		}
	}
	if !Verify(header, body, secret) || h.ID == "" {
		return p, 0, errUnknown()
	}
	if !s.room(h.ID, time.Now()) {
		return p, 0, fleet.Errorf(fleet.CodeQuotaExceeded, "git hook %s is called too often", h.ID).
			With(fleet.DetailLimit, fmt.Sprintf("%d a minute", perMinute)).With(fleet.DetailRemedy, "send it again in a minute; only pushes need to be sent")
	}
	if p, err = Read(header, body); err != nil {
		return p, 0, err
	}
	var rows []records.Playground
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		rows = nil
		row, ok := Hooks.Get(tx, h.ID)
		if !ok {
			return errUnknown()
		}
		now := *row
		if p.Delivery != "" {
			if slices.Contains(now.Deliveries, p.Delivery) {
				p.Kind = "repeated"
				return nil
			}
			now.Deliveries = append(slices.Clone(now.Deliveries), p.Delivery)
			now.Deliveries = now.Deliveries[max(0, len(now.Deliveries)-keptIDs):]
		}
		now.HeardAt = tx.Now()
		if p.Kind == "push" {
			rows = following(tx, now, p)
		}
		return Hooks.Put(tx, now.ID, &now)
	})
	if err != nil || p.Kind != "push" {
		return p, 0, err
	}
	if len(rows) > 0 {
		s.Check(rows...)
	}
	if s.Seek != nil {
		s.Seek(h.Owner, h.Repository)
	}
	return p, len(rows), nil
}

// following lists the playgrounds that a push is news for.
func following(tx state.Reader, h Hook, p Push) (out []records.Playground) {
	for _, row := range records.Playgrounds.All(tx) {
		src := row.Source
		same := row.Owner == h.Owner && records.Place(src.Repository) == records.Place(h.Repository) && src.Branch == p.Branch
		if same && row.Intent == model.IntentUp && (p.Commit == "" || src.Head != p.Commit || src.Commit != p.Commit) {
			out = append(out, *row)
		}
	}
	return out
}

// room counts a message and reports whether there was room for it.
func (s *Service) room(id string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == nil {
		s.used = map[string]window{}
	}
	w := s.used[id]
	if now.Sub(w.from) >= time.Minute {
		w = window{from: now}
	}
	w.n++
	s.used[id] = w
	return w.n <= perMinute
}
