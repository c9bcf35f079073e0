// Package credential keeps what playgrounds need and nobody may read: tokens and
// keys of git servers, logins of registries, values of variables. They lie sealed,
// are never shown again, and those that have a source are replaced before they end.
package credential

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
)

// SealKind, SealKindSource and SealKindQuery are what is sealed of a secret.
const (
	SealKind       = "playground_secret"
	SealKindSource = "playground_secret_source"
	SealKindQuery  = "playground_secret_query"
)

// Limits of secrets.
const (
	MaxValue    = 64 << 10 // bytes
	MaxPerOwner = 200
	maxUsername = 255 // bytes
)

// Kind is what a secret is used for.
type Kind string

// Kinds.
const (
	KindToken    Kind = "token"    // of a git server, over https
	KindSSHKey   Kind = "ssh_key"  // deploy key of a git server
	KindValue    Kind = "value"    // of a variable
	KindRegistry Kind = "registry" // of images
)

// Kinds lists them.
func Kinds() []Kind { return []Kind{KindToken, KindSSHKey, KindValue, KindRegistry} }

// Secret is one secret's document. Name is a registry's address for its login.
type Secret struct {
	ID        string          `json:"id"`
	Owner     string          `json:"owner"`
	Name      string          `json:"name"`
	Kind      Kind            `json:"kind"`
	Username  string          `json:"username,omitempty"`
	Marquee   model.MarqueeID `json:"marquee,omitempty"` // a login for every playground there
	Sealed    []byte          `json:"sealed,omitempty"`
	ExpiresAt time.Time       `json:"expires_at,omitzero"`
	Source    Source          `json:"source,omitzero"`
	CreatedAt time.Time       `json:"created_at"`
	UpdatedAt time.Time       `json:"updated_at"`

	Failures  int       `json:"failures,omitempty"` // of the source, in a row
	Failure   string    `json:"failure,omitempty"`
	TriedAt   time.Time `json:"tried_at,omitzero"`
	RefreshAt time.Time `json:"refresh_at,omitzero"` // when the source is asked next
}

// Source is where new values of a secret come from: a server that answers
// {"token": …, "username": …, "expires_at": …} or "expires_in" in seconds.
type Source struct {
	URL                 string `json:"url,omitempty"`
	AuthorizationSealed []byte `json:"authorization_sealed,omitempty"` // header of that name
	QuerySealed         []byte `json:"query_sealed,omitempty"`         // of the URL, which may hold a key
}

// Shown is the address without its query, which older rows have in the open.
func (s Source) Shown() string {
	at, _, has := strings.Cut(s.URL, "?")
	if has || s.QuerySealed != nil {
		at += "?…"
	}
	return at
}

// IsZero reports whether there is none.
func (s Source) IsZero() bool { return s.URL == "" }

// Secrets is the collection.
var Secrets = state.NewCollection[Secret]("playground_secrets")

var (
	namePattern     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)
	registryPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,250}[a-z0-9])?(:[0-9]{1,5})?$`)
)

// Check refuses what cannot be a secret.
func (s Secret) Check(value []byte) error {
	invalid := func(field, limit, remedy, format string, args ...any) error {
		return fleet.Invalid(field, limit, remedy, format, args...)
	}
	switch {
	case !slices.Contains(Kinds(), s.Kind):
		return invalid("kind", fmt.Sprint(Kinds()), "", "is %.40q", s.Kind)
	case s.Kind == KindRegistry && !registryPattern.MatchString(s.Name):
		return invalid("name", "host or host:port of a registry", "docker.io is Docker Hub", "%.80q is not one", s.Name)
	case s.Kind != KindRegistry && !namePattern.MatchString(s.Name):
		return invalid("name", "1 to 64 letters, digits, '.', '_' and '-'", "give another name", "%.80q is not one", s.Name)
	case len(value) == 0 && s.Source.IsZero():
		return invalid("value", fmt.Sprintf("1 to %d bytes", MaxValue), "give it on standard input", "is empty")
	case len(value) > MaxValue:
		return invalid("value", fmt.Sprintf("1 to %d bytes", MaxValue), "", "has %d bytes", len(value))
	case s.Kind == KindRegistry && (s.Username == "" || strings.ContainsAny(s.Username, ":\n\x00")):
		return invalid("username", "the name to log in with", "a token often goes with any name, such as token", "is missing or has a colon")
	case len(s.Username) > maxUsername || strings.ContainsAny(s.Username, "\n\r\x00"): // git is given it as a line
		return invalid("username", fmt.Sprintf("one line of at most %d bytes", maxUsername), "", "has several, or is longer")
	case s.Kind != KindRegistry && s.Marquee != "":
		return invalid("marquee", "only for logins of registries", "leave it out", "says nothing to a secret of kind %s", s.Kind)
	case s.Kind != KindSSHKey && s.Kind != KindValue && strings.ContainsAny(string(value), "\n\r\x00"):
		return invalid("value", "one line", "", "has several")
	}
	if s.Kind == KindSSHKey {
		if _, err := ssh.ParseRawPrivateKey(value); err != nil { // its text may quote the key
			return invalid("value", "a private key in PEM form without a passphrase", "make one with ssh-keygen -t ed25519 -N ''", "is not one")
		}
	}
	return s.Source.check()
}

func (s Source) check() error {
	if s.IsZero() {
		return nil
	}
	u, err := url.Parse(s.URL)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || len(s.URL) > 2000 || u.Scheme != "https" && (u.Scheme != "http" || !Loopback(u.Hostname())) {
		return fleet.Invalid("source", "https://HOST/PATH without a user", "give the address that answers with a token", "is not one")
	}
	return nil
}

// Loopback reports whether a host name is this machine's own.
func Loopback(host string) bool { return host == "localhost" || host == "127.0.0.1" || host == "::1" }

// Find returns a secret of an owner.
func Find(tx state.Reader, owner, name string, kinds ...Kind) (*Secret, error) {
	for _, s := range Secrets.All(tx) {
		if s.Owner == owner && s.Name == name && s.Marquee == "" && (len(kinds) == 0 || slices.Contains(kinds, s.Kind)) {
			return s, nil
		}
	}
	return nil, fleet.Errorf(fleet.CodeNotFound, "there is no secret %.80q", name).With(fleet.DetailScope, "secret").
		With(fleet.DetailRemedy, "set it first: fuse playground secret set NAME")
}

// Open reads what a secret holds.
func (s *Secret) Open(sealer records.Sealer) ([]byte, error) {
	if s.Sealed == nil {
		return nil, fleet.Errorf(fleet.CodeUnavailable, "secret %s has no value yet: its source was not reached", s.Name)
	}
	value, err := sealer.Open(SealKind, s.ID, s.Sealed)
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", s.Name, err)
	}
	return value, nil
}

// hub is what Docker's configuration calls Docker Hub.
const hub = "https://index.docker.io/v1/"

// Logins is what the registries of a playground are logged in with: its owner's,
// and for the others those of its marquee. Nil: none is needed or known.
func Logins(tx state.Reader, sealer records.Sealer, p *records.Playground) ([]byte, error) {
	found := map[string]*Secret{}
	for _, s := range Secrets.All(tx) {
		if s.Kind != KindRegistry || !slices.Contains(p.Registries, s.Name) || s.Sealed == nil {
			continue
		}
		own := s.Marquee == "" && s.Owner == p.Owner && !p.Claimed
		if own || s.Marquee != "" && s.Marquee == p.Marquee && found[s.Name] == nil {
			found[s.Name] = s
		}
	}
	if len(found) == 0 {
		return nil, nil
	}
	type login struct {
		Auth string `json:"auth"`
	}
	auths := map[string]login{}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		s := found[name]
		value, err := s.Open(sealer)
		if err != nil {
			return nil, err
		}
		if name == "docker.io" {
			name = hub
		}
		auths[name] = login{base64.StdEncoding.EncodeToString([]byte(s.Username + ":" + string(value)))}
	}
	out, err := json.Marshal(map[string]any{"auths": auths})
	if err != nil {
		return nil, fmt.Errorf("write logins: %w", err)
	}
	return out, nil
}

// GitCredential is what git is given for a repository, as files beside a request.
func GitCredential(tx state.Reader, sealer records.Sealer, owner string, src records.Source) (map[string][]byte, error) {
	if src.Secret == "" {
		return nil, nil
	}
	s, err := Find(tx, owner, src.Secret, KindToken, KindSSHKey)
	if err != nil {
		return nil, err
	}
	value, err := s.Open(sealer)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(src.Repository)
	if err != nil {
		return nil, fleet.Errorf(fleet.CodeInvalidArgument, "the repository's address is not one")
	}
	switch {
	case s.Kind == KindSSHKey && u.Scheme == "ssh":
		return map[string][]byte{"key": append(slices.Clip(value), '\n'), "known_hosts": []byte(src.KnownHosts + "\n")}, nil
	case s.Kind == KindToken && (u.Scheme == "https" || u.Scheme == "http" && Loopback(u.Hostname())):
		return map[string][]byte{
			"credential": fmt.Appendf(nil, "username=%s\npassword=%s\n", cmp.Or(s.Username, "token"), value),
			"host":       fmt.Appendf(nil, "protocol=%s\nhost=%s\n", u.Scheme, u.Host),
		}, nil
	}
	return nil, fleet.Errorf(fleet.CodeInvalidArgument, "secret %s is of kind %s, and the repository is reached by %s", s.Name, s.Kind, u.Scheme).
		With(fleet.DetailRemedy, "a token goes with https, a deploy key with ssh")
}

// Service changes secrets.
type Service struct {
	Store  records.Store
	Sealer records.Sealer
	// Kick has marquees looked at whose playgrounds may need other logins.
	Kick func()
}

// Request sets a secret; one of that name gets the new value.
type Request struct {
	Secret
	Value         []byte
	Authorization string // header that its source is asked with
}

// Set seals a secret for its owner.
func (s *Service) Set(ctx context.Context, by fleet.Reason, req Request, newID func() string) (out Secret, err error) {
	if err := req.Check(req.Value); err != nil {
		return out, err
	}
	_, err = s.Store.Update(ctx, func(tx *state.Tx) error {
		out = req.Secret
		out.ID, out.CreatedAt = newID(), tx.Now()
		count := 0
		for _, old := range Secrets.All(tx) {
			if old.Owner != req.Owner {
				continue
			}
			count++
			if old.Name == req.Name && old.Marquee == req.Marquee && (old.Kind == KindRegistry) == (req.Kind == KindRegistry) {
				out.ID, out.CreatedAt, out.Sealed = old.ID, old.CreatedAt, old.Sealed
				count--
			}
		}
		if count >= MaxPerOwner {
			return fleet.Errorf(fleet.CodeConflict, "%s has %d secrets", req.Owner, count).
				With(fleet.DetailLimit, fmt.Sprint(MaxPerOwner)).With(fleet.DetailRemedy, "remove one that is not used: fuse playground secret ls lists them")
		}
		out.UpdatedAt = tx.Now()
		if len(req.Value) > 0 {
			if out.Sealed, err = s.Sealer.Seal(SealKind, out.ID, req.Value); err != nil {
				return fmt.Errorf("seal a secret: %w", err)
			}
		}
		if req.Authorization != "" {
			if out.Source.AuthorizationSealed, err = s.Sealer.Seal(SealKindSource, out.ID, []byte(req.Authorization)); err != nil {
				return fmt.Errorf("seal a secret: %w", err)
			}
		}
		if at, query, has := strings.Cut(out.Source.URL, "?"); has {
			if out.Source.QuerySealed, err = s.Sealer.Seal(SealKindQuery, out.ID, []byte(query)); err != nil {
				return fmt.Errorf("seal a secret: %w", err)
			}
			out.Source.URL = at
		}
		out.RefreshAt = NextRefresh(out, tx.Now())
		Tell(tx, &out, fleet.EventSecretSet, by, "")
		return Secrets.Put(tx, out.ID, &out)
	})
	if err == nil {
		s.Kick()
	}
	return out, err
}

// Tell writes an event of a secret: its name and kind, and nothing of its value.
func Tell(tx *state.Tx, s *Secret, typ string, by fleet.Reason, failure string) {
	raw, _ := json.Marshal(map[string]string{"name": s.Name, "kind": string(s.Kind)}) // texts
	tx.Emit(fleet.Event{EntityType: fleet.EntitySecret, EntityID: s.ID, Owner: s.Owner, Type: typ, Reason: &by, Error: failure, Payload: raw})
}

// List lists the secrets that sees lets through, by name.
func (s *Service) List(sees func(owner string) bool) (out []Secret, err error) {
	err = s.Store.View(func(tx *state.ReadTx) error {
		for _, sec := range Secrets.All(tx) {
			if sees(sec.Owner) {
				out = append(out, *sec)
			}
		}
		return nil
	})
	slices.SortFunc(out, func(a, b Secret) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return out, err
}

// named returns what an owner means by a name: the secret that is for his own
// playgrounds, or else his only login of that registry for a marquee.
func named(tx state.Reader, owner, name string) (*Secret, error) {
	var logins []*Secret
	for _, s := range Secrets.All(tx) {
		switch {
		case s.Owner != owner || s.Name != name:
		case s.Marquee == "":
			return s, nil
		default:
			logins = append(logins, s)
		}
	}
	switch len(logins) {
	case 0:
		return nil, fleet.Errorf(fleet.CodeNotFound, "there is no secret and no login %.80q", name).With(fleet.DetailScope, "secret").
			With(fleet.DetailRemedy, "fuse playground secret ls and fuse marquee registry ls list what there is")
	case 1:
		return logins[0], nil
	}
	return nil, fleet.Errorf(fleet.CodeConflict, "%d logins at %s are each for another marquee", len(logins), name).
		With(fleet.DetailReason, "ambiguous").With(fleet.DetailRemedy, "give the id of one: fuse marquee registry ls lists them")
}

// Remove forgets a secret, by id or by the owner's name for it.
func (s *Service) Remove(ctx context.Context, by fleet.Reason, sees func(owner string) bool, owner, id string) error {
	_, err := s.Store.Update(ctx, func(tx *state.Tx) error {
		sec, ok := Secrets.Get(tx, id)
		if !ok || !sees(sec.Owner) {
			var err error
			if sec, err = named(tx, owner, id); err != nil {
				return err
			}
		}
		for _, p := range records.Playgrounds.All(tx) {
			if p.Owner == sec.Owner && p.Source.Secret == sec.Name && sec.Kind != KindRegistry {
				return fleet.Errorf(fleet.CodeConflict, "playground %s fetches its branch with secret %s", p.Name, sec.Name).
					With(fleet.DetailReason, "in_use").With(fleet.DetailRemedy, "give the playground another secret first")
			}
		}
		Tell(tx, sec, fleet.EventSecretRemoved, by, "")
		return Secrets.Delete(tx, sec.ID)
	})
	if err == nil {
		s.Kick()
	}
	return err
}
