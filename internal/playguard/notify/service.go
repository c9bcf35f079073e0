package notify

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/mail"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// Store is the part of the state owner that notifications use.
type Store interface {
	records.Store
	Watch(ctx context.Context) *state.Subscription
	Events(ctx context.Context, q state.EventQuery) ([]fleet.Event, error)
	Head() (revision, seq uint64)
}

// Poster sends signed messages to addresses that it allows.
type Poster interface {
	Check(url string) error
	// Secret checks a key to sign with, or makes one of nothing.
	Secret(given string) (string, error)
	Shown(url string) string // without what may be secret in it
	// Post tells by code forbidden that trying again is of no use.
	Post(ctx context.Context, url, id, secret string, body []byte) error
	Close()
}

// Config wires a Service. Everything but Told is needed.
type Config struct {
	Store  Store
	Sealer records.Sealer
	Logger *slog.Logger
	Poster Poster // that of webhooks
	// Acting tells for which owners somebody can still act, with that role or more.
	Acting func(tx state.Reader) func(owner string, least fleet.Role) bool
	// Told counts what became of messages: sent, failed, given_up or held. May be
	// nil.
	Told func(channel, result string)
}

// Service is notifications. It is safe for concurrent use.
type Service struct {
	Config
	wake  chan struct{}
	tests tests
	try   func(ctx context.Context, r Route, m Message) error // send, but for tests of time
}

// SendTime bounds one try.
const SendTime = 20 * time.Second

// New makes a Service.
func New(c Config) (*Service, error) {
	if c.Store == nil || c.Sealer == nil || c.Poster == nil || c.Logger == nil || c.Acting == nil {
		return nil, errors.New("notification config: store, sealer, poster, logger and acting are needed")
	}
	if c.Told == nil {
		c.Told = func(string, string) {}
	}
	s := &Service{Config: c, wake: make(chan struct{}, 1)}
	s.try = s.send
	return s, nil
}

// Bounds of routes.
const (
	MaxRoutes     = 50 // of one owner
	MaxTo         = 10
	maxName       = 60
	DefaultMost   = 3
	DefaultWindow = time.Hour
	maxMost       = 100
	minWindow     = time.Minute
	maxWindow     = 7 * 24 * time.Hour
)

// NewRoute asks for a route.
type NewRoute struct {
	Name        string
	Scope       Scope
	Marquee     string // id or name
	Channel     Channel
	URL, Secret string
	To          []string
	Events      []string
	Most        int
	Window      time.Duration
}

// Told is a route as people see it.
type Told struct {
	Route
	Pending int
	Secret  string // of one that was just made
}

func seesAll(ctx context.Context) bool {
	p, ok := auth.From(ctx)
	return !ok || p.SeesAll()
}

// check refuses what cannot be a route, and fills in what was left out.
func (s *Service) check(ctx context.Context, r *NewRoute) error {
	if r.Name == "" || len(r.Name) > maxName || strings.TrimSpace(r.Name) != r.Name || strings.IndexFunc(r.Name, func(c rune) bool { return !unicode.IsPrint(c) }) >= 0 {
		return fleet.Invalid("name", fmt.Sprintf("1 to %d bytes of printable text", maxName), "give another name", "%.80q is not one", r.Name)
	}
	switch r.Scope {
	case ScopePlayer, ScopeMarquee, ScopeInstallation:
	default:
		return fleet.Invalid("scope", "player, marquee or installation", "", "is %.40q", r.Scope)
	}
	switch {
	case r.Scope != ScopePlayer && !seesAll(ctx):
		return fleet.Errorf(fleet.CodeForbidden, "scope %s tells of what others have, which is for operators", r.Scope).With(fleet.DetailRemedy, "take scope player")
	case (r.Scope == ScopeMarquee) != (r.Marquee != ""):
		return fleet.Invalid("marquee", "with scope marquee, and only there", "", "and scope %s do not go together", r.Scope)
	}
	if err := s.checkTarget(r); err != nil {
		return err
	}
	r.Most, r.Window = cmp.Or(r.Most, DefaultMost), cmp.Or(r.Window, DefaultWindow)
	switch {
	case r.Most < 1 || r.Most > maxMost:
		return fleet.Invalid("most", fmt.Sprintf("1 to %d", maxMost), "", "is %d", r.Most)
	case r.Window < minWindow || r.Window > maxWindow:
		return fleet.Invalid("window_seconds", "a minute to a week", "", "is %s", r.Window)
	}
	return checkPatterns(r.Events)
}

func (s *Service) checkTarget(r *NewRoute) (err error) {
	switch r.Channel {
	case ChannelWebhook:
		if len(r.To) > 0 {
			return fleet.Invalid("to", "only for email", "leave it out", "says nothing to a webhook")
		}
		if err := s.Poster.Check(r.URL); err != nil {
			return err
		}
		r.Secret, err = s.Poster.Secret(r.Secret)
		return err
	case ChannelEmail:
		if r.URL != "" || r.Secret != "" {
			return fleet.Invalid("url", "only for webhook", "leave it out", "says nothing to email")
		}
		if len(r.To) == 0 || len(r.To) > MaxTo {
			return fleet.Invalid("to", fmt.Sprintf("1 to %d addresses", MaxTo), "", "has %d", len(r.To))
		}
		for i, a := range r.To {
			addr, err := mail.ParseAddress(a)
			if err != nil || len(a) > 254 || strings.ContainsAny(a, "\r\n") {
				return fleet.Invalid("to", "addresses such as ann@example.org", "correct it", "%.80q is none", a)
			}
			r.To[i] = addr.Address
		}
		return nil
	}
	return fleet.Invalid("channel", "webhook or email", "", "is %.40q", r.Channel)
}

// Add makes a route. It tells of what happens from now on.
func (s *Service) Add(ctx context.Context, req NewRoute) (out Told, err error) {
	req.To = slices.Clone(req.To)
	if err := s.check(ctx, &req); err != nil {
		return out, err
	}
	owner, by := service.Caller(ctx)
	r := Route{
		ID: strings.ToLower(uid.New()), Name: req.Name, Owner: owner, Scope: req.Scope, Channel: req.Channel, To: req.To, Events: req.Events,
		Most: req.Most, Window: req.Window,
	}
	if req.Channel == ChannelWebhook {
		raw, err := json.Marshal(target{req.URL, req.Secret}) //nolint:gosec // it is sealed in the next lines
		if err != nil {
			return out, fmt.Errorf("encode the target of route %s: %w", r.Name, err)
		}
		if r.TargetSealed, err = s.Sealer.Seal(SealKindTarget, r.ID, raw); err != nil {
			return out, fmt.Errorf("seal the target of route %s: %w", r.Name, err)
		}
		r.Shown = s.Poster.Shown(req.URL)
	}
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		if req.Marquee != "" {
			m, err := service.FindMarquee(tx, req.Marquee)
			if err != nil {
				return err
			}
			r.Marquee = m.ID
		}
		n := 0
		for _, o := range Routes.All(tx) {
			if o.Owner != owner {
				continue
			}
			if n++; o.Name == r.Name {
				return fleet.Errorf(fleet.CodeConflict, "there is a route %s", r.Name).With(fleet.DetailReason, "exists").With(fleet.DetailRemedy, "take another name, or remove it first")
			}
		}
		if n >= MaxRoutes {
			return fleet.Errorf(fleet.CodeConflict, "%s has %d routes", owner, n).
				With(fleet.DetailLimit, fmt.Sprint(MaxRoutes)).With(fleet.DetailRemedy, "remove one that is not used")
		}
		_, r.From = s.Store.Head()
		r.CreatedAt = tx.Now()
		tell(tx, &r, by, fleet.EventNotificationRouteCreated, "")
		return Routes.Put(tx, r.ID, &r)
	})
	s.nudge()
	return Told{Route: r, Secret: req.Secret}, err
}

func tell(tx *state.Tx, r *Route, by fleet.Reason, typ, text string) {
	tx.Emit(fleet.Event{EntityType: fleet.EntityNotificationRoute, EntityID: r.ID, Owner: r.Owner, Type: typ, Error: text, Reason: &by})
}

func find(ctx context.Context, tx state.Reader, id string) (*Route, error) {
	sees := auth.Visible(ctx)
	if r, ok := Routes.Get(tx, id); ok && sees(r.Owner) {
		return r, nil
	}
	owner, _ := service.Caller(ctx)
	var found *Route
	for _, r := range Routes.All(tx) {
		if r.Name == id && sees(r.Owner) && (found == nil || r.Owner == owner) {
			found = r
		}
	}
	if found == nil {
		return nil, fleet.Errorf(fleet.CodeNotFound, "there is no notification route %.80q", id).With(fleet.DetailScope, "route")
	}
	return found, nil
}

func seen(tx state.Reader, r *Route) Told {
	out := Told{Route: *r}
	out.TargetSealed = nil
	for range Messages.Prefix(tx, r.ID+"/") {
		out.Pending++
	}
	return out
}

// Get returns one by id or name.
func (s *Service) Get(ctx context.Context, id string) (out Told, err error) {
	err = s.Store.View(func(tx *state.ReadTx) error {
		r, err := find(ctx, tx, id)
		if err == nil {
			out = shown(seen(tx, r), s.silent(tx))
		}
		return err
	})
	return out, err
}

// List lists those that the caller sees.
func (s *Service) List(ctx context.Context) (out []Told, err error) {
	sees := auth.Visible(ctx)
	err = s.Store.View(func(tx *state.ReadTx) error {
		silent := s.silent(tx)
		for _, r := range Routes.All(tx) {
			if sees(r.Owner) {
				out = append(out, shown(seen(tx, r), silent))
			}
		}
		return nil
	})
	return out, err
}

// silent tells which routes tell nothing, since nobody who may know it can act for
// their owner any more.
func (s *Service) silent(tx state.Reader) func(r *Route) bool {
	acting := s.Acting(tx)
	return func(r *Route) bool {
		if r.Scope == ScopePlayer {
			return !acting(r.Owner, fleet.RoleRead)
		}
		return !acting(r.Owner, fleet.RoleOperator)
	}
}

func shown(t Told, silent func(r *Route) bool) Told {
	if silent(&t.Route) {
		t.Error = "no API key that may know this acts for its owner any more; it tells nothing until one does"
	}
	return t
}

// Pause stops a route from telling, or lets it go on with what comes then.
func (s *Service) Pause(ctx context.Context, id string, pause bool) (out Told, err error) {
	_, by := service.Caller(ctx)
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		row, err := find(ctx, tx, id)
		if err != nil {
			return err
		}
		r := *row
		if r.Paused == pause {
			out = seen(tx, &r)
			return nil
		}
		if r.Paused = pause; !pause {
			_, r.From = s.Store.Head()
		}
		tell(tx, &r, by, fleet.EventNotificationRouteUpdated, "")
		out = seen(tx, &r)
		return Routes.Put(tx, r.ID, &r)
	})
	s.nudge()
	return out, err
}

// Remove removes a route, and what waits for it.
func (s *Service) Remove(ctx context.Context, id string) error {
	_, by := service.Caller(ctx)
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		r, err := find(ctx, tx, id)
		if err != nil {
			return err
		}
		tell(tx, r, by, fleet.EventNotificationRouteRemoved, "")
		return errors.Join(forget(tx, r.ID), Routes.Delete(tx, r.ID))
	})
	return err
}

func forget(tx *state.Tx, route string) error {
	var messages, memories []string
	for id := range Messages.Prefix(tx, route+"/") {
		messages = append(messages, id)
	}
	for id := range Memories.Prefix(tx, route+"/") {
		memories = append(memories, id)
	}
	var errs []error
	for _, id := range messages {
		errs = append(errs, Messages.Delete(tx, id))
	}
	for _, id := range memories {
		errs = append(errs, Memories.Delete(tx, id))
	}
	return errors.Join(errs...)
}

// SetMail says how mail is sent. An empty password leaves the one that there
// is.
func (s *Service) SetMail(ctx context.Context, m Mail, password string) (Mail, error) {
	m.TLS = cmp.Or(m.TLS, StartTLS)
	m.Port = cmp.Or(m.Port, map[TLS]int{StartTLS: 587, ImplicitTLS: 465, NoTLS: 25}[m.TLS])
	from, err := mail.ParseAddress(m.From)
	switch {
	case m.Host == "" || len(m.Host) > 253 || strings.ContainsAny(m.Host, " /@\r\n"):
		return m, fleet.Invalid("host", "the name or address of a mail server", "", "%.80q is none", m.Host)
	case m.Port < 1 || m.Port > 65535:
		return m, fleet.Invalid("port", "1 to 65535", "", "is %d", m.Port)
	case m.TLS != StartTLS && m.TLS != ImplicitTLS && m.TLS != NoTLS:
		return m, fleet.Invalid("tls", "starttls, implicit or none", "", "is %.40q", m.TLS)
	case err != nil || strings.ContainsAny(m.From, "\r\n"):
		return m, fleet.Invalid("from", "an address such as fuse@example.org", "", "%.80q is none", m.From)
	case m.TLS == NoTLS && (password != "" || m.User != ""):
		return m, fleet.Invalid("tls", "starttls or implicit with a password", "a password must not be readable on its way", "is none")
	case m.CA != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(m.CA)):
		return m, fleet.Invalid("ca", "certificates in PEM form", "", "has none")
	}
	m.From = from.Address
	var sealed []byte
	if password != "" {
		if sealed, err = s.Sealer.Seal(SealKindMail, mailID, []byte(password)); err != nil {
			return m, fmt.Errorf("seal the password for mail: %w", err)
		}
	}
	_, by := service.Caller(ctx)
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		if m.PasswordSealed = sealed; sealed == nil {
			if old, ok := Memories.Get(tx, mailID); ok && old.Mail != nil && old.Mail.User == m.User && old.Mail.Host == m.Host {
				m.PasswordSealed = old.Mail.PasswordSealed
			}
		}
		tell(tx, &Route{ID: mailID, Owner: fleet.OwnerMaster}, by, fleet.EventNotificationMailChanged, "")
		return Memories.Put(tx, mailID, &Memory{Mail: &m})
	})
	s.nudge()
	return m, err
}

// Mail returns how mail is sent; not_found if it is not.
func (s *Service) Mail() (m Mail, err error) {
	err = s.Store.View(func(tx *state.ReadTx) error {
		row, ok := Memories.Get(tx, mailID)
		if !ok || row.Mail == nil {
			return fleet.Errorf(fleet.CodeNotFound, "nobody has said how mail is sent").With(fleet.DetailScope, "mail").
				With(fleet.DetailRemedy, "an operator says it with 'fuse notify mail set'")
		}
		m = *row.Mail
		return nil
	})
	return m, err
}

// RemoveMail sends no mail any more.
func (s *Service) RemoveMail(ctx context.Context) error {
	_, by := service.Caller(ctx)
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		if _, ok := Memories.Get(tx, mailID); !ok {
			return nil
		}
		tell(tx, &Route{ID: mailID, Owner: fleet.OwnerMaster}, by, fleet.EventNotificationMailChanged, "")
		return Memories.Delete(tx, mailID)
	})
	return err
}
