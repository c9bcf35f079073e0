package webhooks

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Store is the part of the state owner that webhooks use.
type Store interface {
	View(fn func(*state.ReadTx) error) error
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
	Watch(ctx context.Context) *state.Subscription
	Events(ctx context.Context, q state.EventQuery) ([]fleet.Event, error)
	Head() (revision, seq uint64)
}

// Sealer encrypts secrets.
type Sealer interface {
	Seal(kind, id string, plain []byte) ([]byte, error)
	Open(kind, id string, sealed []byte) ([]byte, error)
}

// SealKindSecret is the kind of sealed secrets; the id is the webhook's.
const SealKindSecret = "webhook_secret"

// Config wires a Service. Store, Sealer and Logger are needed.
type Config struct {
	Store  Store
	Sealer Sealer
	Logger *slog.Logger
	// AllowPrivate lets messages go to addresses that are not on the internet,
	// and without TLS.
	AllowPrivate bool
	// Transport replaces the guarded one, in tests.
	Transport http.RoundTripper
	// Timeout bounds one try; zero is 15 s.
	Timeout time.Duration
	// Tried is told of every try, delivered or failed, and of every message that
	// is given_up. May be nil.
	Tried func(result string)
}

// MaxWebhooks bounds the webhooks of a fleet.
const MaxWebhooks = 50

var (
	hooks      = state.NewCollection[fleet.Webhook]("webhooks")
	deliveries = state.NewCollection[fleet.Delivery]("deliveries")
)

// key is the id of a delivery's row: those of a webhook lie together.
func key(hook, delivery string) string { return hook + "/" + delivery }

// Service keeps webhooks and, where Run runs, sends what they want.
type Service struct {
	cfg    Config
	log    *slog.Logger
	client *http.Client

	mu      sync.Mutex
	workers map[string]*worker // guarded by mu; while Run runs
}

// New makes the service. Nothing is sent before Run.
func New(cfg Config) (*Service, error) {
	if cfg.Store == nil || cfg.Sealer == nil || cfg.Logger == nil {
		return nil, errors.New("webhooks config: store, sealer and logger are needed")
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, 15*time.Second)
	if cfg.Tried == nil {
		cfg.Tried = func(string) {}
	}
	s := &Service{cfg: cfg, log: cfg.Logger, client: newClient(cfg.AllowPrivate, cfg.Timeout), workers: map[string]*worker{}}
	if cfg.Transport != nil {
		s.client.Transport = cfg.Transport
	}
	return s, nil
}

// Request is what somebody wants of a webhook. Nil fields of a change stay as
// they are.
type Request struct {
	URL, Description *string
	Filter           *fleet.EventFilter
	Secret           string // of a new one; empty: one is made
	Owner, Actor     string
}

const maxDescription = 200

func (s *Service) apply(h *fleet.Webhook, req Request) error {
	if req.URL != nil {
		if err := checkURL(*req.URL, s.cfg.AllowPrivate); err != nil {
			return err
		}
		h.URL = *req.URL
	}
	if req.Description != nil {
		if len(*req.Description) > maxDescription {
			return fleet.Invalid("description", "200 bytes", "shorten it", "has %d bytes", len(*req.Description))
		}
		h.Description = *req.Description
	}
	if req.Filter != nil {
		if _, err := events.Compile(*req.Filter); err != nil {
			return err
		}
		if err := events.CheckTypes(req.Filter.Types); err != nil {
			return err
		}
		h.Filter = *req.Filter
	}
	return nil
}

// Create makes a webhook, which gets the events from now on, and returns its
// secret: it is shown this once.
func (s *Service) Create(ctx context.Context, req Request) (fleet.Webhook, string, error) {
	h := fleet.Webhook{ID: "wh_" + uid.New(), Owner: req.Owner}
	if req.URL == nil {
		req.URL = new(string)
	}
	if err := s.apply(&h, req); err != nil {
		return h, "", err
	}
	secret := req.Secret
	if secret == "" {
		var err error
		if secret, err = newSecret(); err != nil {
			return h, "", err
		}
	}
	sealed, err := s.seal(h.ID, secret)
	if err != nil {
		return h, "", err
	}
	h.SecretSealed = sealed
	_, err = s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		if hooks.Len(tx) >= MaxWebhooks {
			return fleet.Errorf(fleet.CodeConflict, "there are %d webhooks already", MaxWebhooks).
				With(fleet.DetailLimit, "50").With(fleet.DetailRemedy, "delete one that is not needed")
		}
		h.CreatedAt, h.UpdatedAt, h.Cursor = tx.Now(), tx.Now(), tx.Seq()
		tell(tx, &h, fleet.EventWebhookCreated, asked(req.Actor))
		return hooks.Put(tx, h.ID, &h)
	})
	return h, secret, err
}

func (s *Service) seal(id, secret string) ([]byte, error) {
	if _, err := secretKey(secret); err != nil {
		return nil, err
	}
	return s.cfg.Sealer.Seal(SealKindSecret, id, []byte(secret))
}

// Get returns one webhook.
func (s *Service) Get(id string) (h fleet.Webhook, err error) {
	err = s.cfg.Store.View(func(tx *state.ReadTx) error {
		row, ok := hooks.Get(tx, id)
		if !ok {
			return notFound(id)
		}
		h = *row
		return nil
	})
	return h, err
}

// List returns up to limit webhooks with ids above after, and whether there
// are more.
func (s *Service) List(after string, limit int) (out []fleet.Webhook, more bool, err error) {
	err = s.cfg.Store.View(func(tx *state.ReadTx) error {
		out, more = page(hooks.After(tx, after), limit)
		return nil
	})
	return out, more, err
}

func page[T any](rows iter.Seq2[string, *T], limit int) (out []T, more bool) {
	for _, row := range rows {
		if len(out) == limit {
			return out, true
		}
		out = append(out, *row)
	}
	return out, false
}

// Change changes a webhook. A new address is tried at once.
func (s *Service) Change(ctx context.Context, id string, req Request) (fleet.Webhook, error) {
	return s.edit(ctx, id, fleet.EventWebhookUpdated, asked(req.Actor), func(_ *state.Tx, h *fleet.Webhook) error {
		if req.URL != nil {
			h.Failures, h.FailingSince = 0, time.Time{}
		}
		return s.apply(h, req)
	})
}

// Enable lets a webhook that was disabled go on where it stopped.
func (s *Service) Enable(ctx context.Context, id, actor string) (fleet.Webhook, error) {
	return s.edit(ctx, id, fleet.EventWebhookUpdated, asked(actor), func(tx *state.Tx, h *fleet.Webhook) error {
		h.Disabled, h.DisabledAt, h.Failures, h.FailingSince, h.RetryAt = nil, time.Time{}, 0, time.Time{}, time.Time{}
		return renew(tx, id)
	})
}

// Disable stops a webhook; its place in the log stays.
func (s *Service) Disable(ctx context.Context, id, actor string) (fleet.Webhook, error) {
	return s.edit(ctx, id, fleet.EventWebhookDisabled, asked(actor), func(tx *state.Tx, h *fleet.Webhook) error {
		h.Disabled, h.DisabledAt = asked(actor), tx.Now()
		return nil
	})
}

// Overlap is how long the secret before a rotation stays valid unless somebody
// says otherwise, and MaxOverlap the longest that may be said.
const (
	Overlap    = 24 * time.Hour
	MaxOverlap = 7 * 24 * time.Hour
)

// Rotate gives a webhook a new secret, which is shown this once. Messages are
// signed with both until overlap is over; zero ends the old one at once.
func (s *Service) Rotate(ctx context.Context, id, actor string, overlap time.Duration) (h fleet.Webhook, secret string, err error) {
	if overlap < 0 || overlap > MaxOverlap {
		return h, "", fleet.Invalid("overlap", MaxOverlap.String(), "give the time that the receiver needs to change over", "cannot be %s", overlap)
	}
	if secret, err = newSecret(); err != nil {
		return h, "", err
	}
	sealed, err := s.seal(id, secret)
	if err != nil {
		return h, "", err
	}
	h, err = s.edit(ctx, id, fleet.EventWebhookUpdated, asked(actor), func(tx *state.Tx, h *fleet.Webhook) error {
		h.PreviousSealed, h.PreviousUntil = h.SecretSealed, tx.Now().Add(overlap)
		h.SecretSealed = sealed
		if overlap == 0 {
			h.PreviousSealed, h.PreviousUntil = nil, time.Time{}
		}
		return nil
	})
	return h, secret, err
}

func (s *Service) edit(ctx context.Context, id, event string, why *fleet.Reason, fn func(*state.Tx, *fleet.Webhook) error) (h fleet.Webhook, err error) {
	_, err = s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		row, ok := hooks.Get(tx, id)
		if !ok {
			return notFound(id)
		}
		h = *row
		if err := fn(tx, &h); err != nil {
			return err
		}
		h.UpdatedAt = tx.Now()
		tell(tx, &h, event, why)
		return hooks.Put(tx, id, &h)
	})
	return h, err
}

// Delete forgets a webhook and its deliveries.
func (s *Service) Delete(ctx context.Context, id, actor string) error {
	_, err := s.cfg.Store.Update(ctx, func(tx *state.Tx) error {
		h, ok := hooks.Get(tx, id)
		if !ok {
			return notFound(id)
		}
		var gone []string
		for row := range deliveries.Prefix(tx, id+"/") {
			gone = append(gone, row)
		}
		for _, row := range gone {
			if err := deliveries.Delete(tx, row); err != nil {
				return err
			}
		}
		tell(tx, h, fleet.EventWebhookDeleted, asked(actor))
		return hooks.Delete(tx, id)
	})
	return err
}

// tell emits an event about a webhook.
func tell(tx *state.Tx, h *fleet.Webhook, typ string, why *fleet.Reason) {
	tx.Emit(fleet.Event{EntityType: fleet.EntityWebhook, EntityID: h.ID, Owner: h.Owner, Type: typ, Reason: why})
}

func asked(actor string) *fleet.Reason { return &fleet.Reason{Actor: actor, Rule: fleet.RuleRequested} }

func notFound(id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "there is no webhook %.80q", id).
		With(fleet.DetailScope, "webhook").With(fleet.DetailRemedy, "'fuse webhook ls' shows those there are")
}
