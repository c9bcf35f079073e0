package join

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"

	"golang.org/x/time/rate"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire/joinwire"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/state/settings"
	"github.com/fusevm/fuse/internal/uid"
)

// Limits and defaults of join tokens.
const (
	DefaultLife = time.Hour
	MaxLife     = 30 * 24 * time.Hour
	MaxUses     = 1000
	// MaxTokens bounds those that are kept; ones that are over make room.
	MaxTokens = 200

	settingPrefix = "host_join_token."
)

// Store is the part of the state owner that a Service uses.
type Store interface {
	View(fn func(*state.ReadTx) error) error
	Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error)
}

// Registration is a host to take in on the strength of a token.
type Registration struct {
	ID, Owner, Actor, Evidence string
	URL, Token, CertSHA256     string
	Region                     string
	Labels                     map[string]string
}

// Registrar takes a host in and returns what there is to warn of.
type Registrar func(ctx context.Context, r Registration) (warnings []string, err error)

// Service keeps join tokens and answers joins. It is safe for concurrent use.
type Service struct {
	store    Store
	register Registrar
	log      *slog.Logger
	nonces   *nonces
	refusals *rate.Limiter
	nobody   joinwire.Verifier // of no token: checking against it takes as long
}

// New makes a Service.
func New(store Store, register Registrar, log *slog.Logger) (*Service, error) {
	if store == nil || register == nil || log == nil {
		return nil, errors.New("join: store, registrar and logger are needed")
	}
	nobody, err := joinwire.NewToken(uid.New())
	if err != nil {
		return nil, err
	}
	n, err := newNonces()
	if err != nil {
		return nil, err
	}
	return &Service{store, register, log, n, rate.NewLimiter(1, 10), nobody.Verifier()}, nil
}

// CreateRequest asks for a token. Zero values are the defaults; HostID, Region
// and Labels are what a host that joins gets, where set.
type CreateRequest struct {
	Uses   int
	Life   time.Duration
	HostID string
	Region string
	Labels map[string]string
	Owner  string
	Actor  string
}

func (r *CreateRequest) validate() error {
	r.Uses, r.Life = cmp.Or(r.Uses, 1), cmp.Or(r.Life, DefaultLife)
	switch {
	case r.Uses < 1 || r.Uses > MaxUses:
		return fleet.Invalid("uses", "1 to "+strconv.Itoa(MaxUses), "leave it out for 1", "is %d", r.Uses)
	case r.Life < time.Second || r.Life > MaxLife:
		return fleet.Invalid("expires_in_seconds", "1 to "+strconv.FormatInt(int64(MaxLife/time.Second), 10), "leave it out for an hour", "is %s", r.Life)
	case r.HostID != "" && !fleet.ValidHostID(r.HostID):
		return fleet.Invalid("host_id", "1 to 63 letters, digits, dots, underscores or dashes, starting with a letter or digit", "choose another id", "%.80q is not allowed", r.HostID)
	case r.HostID != "" && r.Uses > 1:
		return fleet.Invalid("uses", "1 with a host_id", "leave one of the two out", "is %d, but only host %s may join with it", r.Uses, r.HostID)
	case r.Region != "" && !fleet.ValidLabel(r.Region):
		return fleet.Invalid("region", "1 to 63 letters, digits, dots, underscores or dashes", "choose another name", "%.80q is not allowed", r.Region)
	}
	return fleet.LabelRule{Field: "labels", Noun: "labels", Most: fleet.MaxLabels, Fewer: "give fewer", Remedy: "rename the label"}.Check(r.Labels)
}

// Create makes a token. Its text is in the answer and nowhere else.
func (s *Service) Create(ctx context.Context, req CreateRequest) (fleet.JoinToken, string, error) {
	if err := req.validate(); err != nil {
		return fleet.JoinToken{}, "", err
	}
	token, err := joinwire.NewToken(uid.New())
	if err != nil {
		return fleet.JoinToken{}, "", err
	}
	v := token.Verifier()
	row := fleet.JoinToken{
		ID: token.ID, StoredKey: v.StoredKey, ServerKey: v.ServerKey, Owner: req.Owner, CreatedBy: req.Actor,
		MaxUses: req.Uses, HostID: req.HostID, Region: req.Region, Labels: maps.Clone(req.Labels),
	}
	_, err = s.store.Update(ctx, func(tx *state.Tx) error {
		if err := makeRoom(tx); err != nil {
			return err
		}
		row.CreatedAt, row.ExpiresAt = tx.Now(), tx.Now().Add(req.Life).Truncate(time.Second)
		tx.Emit(event(row.ID, fleet.EventJoinTokenCreated, fleet.Reason{
			Actor: req.Actor, Rule: fleet.RuleRequested, Evidence: fmt.Sprintf("join token %s, for %d hosts until %s", row.ID, row.MaxUses, row.ExpiresAt.UTC().Format(time.RFC3339)),
		}))
		return put(tx, &row)
	})
	if err != nil {
		return fleet.JoinToken{}, "", fmt.Errorf("create join token: %w", err)
	}
	return row, token.Text(), nil
}

// makeRoom forgets tokens that are over, once there are too many.
func makeRoom(tx *state.Tx) error {
	all := tokens(tx)
	if len(all) < MaxTokens {
		return nil
	}
	freed := 0
	for _, t := range all {
		if over(t, tx.Now()) != "" {
			if err := settings.Documents.Delete(tx, settingPrefix+t.ID); err != nil {
				return err
			}
			freed++
		}
	}
	if freed > 0 {
		return nil
	}
	limit := strconv.Itoa(MaxTokens)
	return fleet.Errorf(fleet.CodeConflict, "there are %s join tokens already", limit).
		With(fleet.DetailLimit, limit).With(fleet.DetailUsage, strconv.Itoa(len(all))).With(fleet.DetailRemedy, "revoke some: fuse host join-token rm ID")
}

// over says why a token joins nobody new any more; "" if it does.
func over(t *fleet.JoinToken, now time.Time) string {
	switch {
	case !now.Before(t.ExpiresAt):
		return "expired at " + t.ExpiresAt.UTC().Format(time.RFC3339)
	case len(t.Uses) >= t.MaxUses:
		return fmt.Sprintf("was used by %d of %d hosts", len(t.Uses), t.MaxUses)
	}
	return ""
}

func tokens(tx state.Reader) (out []*fleet.JoinToken) {
	for _, doc := range settings.Documents.All(tx) {
		if doc.JoinToken != nil {
			out = append(out, doc.JoinToken)
		}
	}
	return out
}

func get(tx state.Reader, id string) (*fleet.JoinToken, bool) {
	doc, ok := settings.Documents.Get(tx, settingPrefix+id)
	if !ok || doc.JoinToken == nil {
		return nil, false
	}
	return doc.JoinToken, true
}

func put(tx *state.Tx, t *fleet.JoinToken) error {
	return settings.Documents.Put(tx, settingPrefix+t.ID, &fleet.Setting{JoinToken: t})
}

// List returns the tokens that are kept, the newest first.
func (s *Service) List() (list []fleet.JoinToken, err error) {
	err = s.store.View(func(tx *state.ReadTx) error {
		for _, t := range tokens(tx) {
			list = append(list, *t)
		}
		return nil
	})
	slices.SortFunc(list, func(a, b fleet.JoinToken) int { return cmp.Compare(b.ID, a.ID) })
	return list, err
}

// Revoke ends a token at once; hosts that joined with it stay.
func (s *Service) Revoke(ctx context.Context, id, actor string) error {
	_, err := s.store.Update(ctx, func(tx *state.Tx) error {
		if _, ok := get(tx, id); !ok {
			return fleet.Errorf(fleet.CodeNotFound, "there is no join token %.80q", id)
		}
		tx.Emit(event(id, fleet.EventJoinTokenRevoked, fleet.Reason{Actor: actor, Rule: fleet.RuleRequested, Evidence: "join token " + id}))
		return settings.Documents.Delete(tx, settingPrefix+id)
	})
	return err
}

// event tells of a token; what it concerns is the fleet's hosts as a whole.
func event(id, kind string, why fleet.Reason) fleet.Event {
	return fleet.Event{EntityType: fleet.EntityJoinToken, EntityID: id, Type: kind, Reason: &why}
}
