// Package auth decides who may talk to the control plane, and what about: by
// address, by the server's own token, by API key and by session cookie, and
// then by role. It keeps hashes only, compares them in constant time, and tells
// of refusals at a bounded rate.
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// Principal is who makes a request. Name is the owner written on what it
// creates, and the scope of its quotas, caches and Idempotency-Keys: it comes
// from the credential, never from the request.
type Principal struct {
	Name  string
	Role  fleet.Role
	KeyID string // of an API key; empty for the server's own token
	Label string // of that key

	held *credential // nil: lasts as long as the process
}

// Master is the holder of the server's token, and everybody when a server on
// loopback has none.
var Master = Principal{Name: fleet.OwnerMaster, Role: fleet.RoleMaster}

// Actor is how reasons and events name the principal. For an API key that is
// its label and id: labels may repeat.
func (p Principal) Actor() string {
	switch {
	case p.KeyID == "":
		return "user:" + p.Name
	case p.Label == "":
		return "user:" + p.KeyID
	}
	return "user:" + p.Label + "/" + p.KeyID
}

type principalKey struct{}

// With puts the principal of a request into its context.
func With(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// From returns the principal of a request; ok is false outside of one.
func From(ctx context.Context) (p Principal, ok bool) {
	p, ok = ctx.Value(principalKey{}).(Principal)
	return p, ok
}

// Visible returns which owners' objects the caller of a request sees; work that
// no request asks for sees all. Services ask it in the transaction that finds
// an object by an id from outside, which may have got another owner since the
// edge looked.
func Visible(ctx context.Context) func(owner string) bool {
	p, ok := From(ctx)
	return func(owner string) bool { return !ok || p.Sees(owner) }
}

// Config of a Gate. An empty Token leaves the API open to whoever reaches it
// by a loopback name: the caller must then listen on loopback only. No
// AllowedCIDRs allow every address.
type Config struct {
	Token         string
	AllowedCIDRs  []netip.Prefix
	SecureCookies bool
	Keys          Keys // nil: there are no API keys
}

// Gate checks requests. It is safe for concurrent use.
type Gate struct {
	token     [sha256.Size]byte
	open      bool
	cidrs     []netip.Prefix
	secure    bool
	keys      Keys
	sessions  sessions
	followers followers
}

// New makes a Gate.
func New(cfg Config) *Gate {
	return &Gate{
		token: sha256.Sum256([]byte(cfg.Token)), open: cfg.Token == "",
		cidrs: cfg.AllowedCIDRs, secure: cfg.SecureCookies, keys: cfg.Keys,
	}
}

// Open reports whether no token is asked for.
func (g *Gate) Open() bool { return g.open }

// CheckAddress refuses a peer outside of the allowed networks with forbidden.
// Only the socket's own peer counts, never a header; a unix socket is guarded
// by its file and always passes.
func (g *Gate) CheckAddress(r *http.Request) error {
	if len(g.cidrs) == 0 || viaUnix(r) {
		return nil
	}
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		addr := peer.Addr().Unmap().WithZone("")
		for _, p := range g.cidrs {
			if p.Contains(addr) {
				return nil
			}
		}
	}
	return fleet.Errorf(fleet.CodeForbidden, "this address may not use the server")
}

// Authenticate finds out who makes a request: by Authorization first, then
// X-API-Key, then the session cookie. The first that is there decides. A server
// without token takes everybody for the master who does not show an API key.
func (g *Gate) Authenticate(r *http.Request) (Principal, error) {
	if g.open {
		if err := LocalName(r); err != nil {
			return Principal{}, err
		}
		if token := shown(r); strings.HasPrefix(token, keyPrefix) {
			return g.byKey(token)
		}
		return Master, nil
	}
	if header := r.Header.Values("Authorization"); len(header) > 0 {
		scheme, token, _ := strings.Cut(header[0], " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return Principal{}, fleet.Errorf(fleet.CodeUnauthorized, "the Authorization header must be \"Bearer\" and a token")
		}
		return g.byToken(strings.TrimSpace(token))
	}
	if key := r.Header.Get("X-API-Key"); key != "" {
		return g.byToken(key)
	}
	if cookie, err := r.Cookie(cookieName); err == nil {
		p, err := g.bySession(cookie.Value)
		if err == nil {
			err = ownPage(r)
		}
		return p, err
	}
	return Principal{}, fleet.Errorf(fleet.CodeUnauthorized, "a token is needed").
		With(fleet.DetailRemedy, "send Authorization: Bearer TOKEN (the CLI takes it from FUSE_TOKEN, FUSE_TOKEN_FILE or its context)")
}

// shown is the token of a request's headers, if any.
func shown(r *http.Request) string {
	if scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " "); strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token)
	}
	return r.Header.Get("X-API-Key")
}

func (g *Gate) byToken(token string) (Principal, error) {
	sum := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(sum[:], g.token[:]) == 1 && !g.open {
		return Master, nil
	}
	return g.byKey(token)
}

// ownPage keeps what a browser sends along by itself for pages of this server:
// another port of the same machine is the same site to its cookie.
func ownPage(r *http.Request) error {
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		return fleet.Wrap(fleet.CodeForbidden, err, "a session does not answer other sites").
			With(fleet.DetailRemedy, "send the token in an Authorization header")
	}
	return nil
}

// LocalName keeps web pages away from what a server on loopback answers without
// a token: a page can reach loopback, but cannot hide the name it used nor its
// own origin.
func LocalName(r *http.Request) error {
	if !viaUnix(r) && !loopbackHost(hostOnly(r.Host)) {
		return fleet.Errorf(fleet.CodeForbidden, "without a token this answers only under a loopback name").
			With(fleet.DetailRemedy, "use 127.0.0.1 or localhost, or start the server with a token")
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		u, err := url.Parse(origin)
		if err != nil || !loopbackHost(u.Hostname()) {
			return fleet.Errorf(fleet.CodeForbidden, "without a token this does not answer other sites").
				With(fleet.DetailRemedy, "start the server with a token")
		}
	}
	return nil
}

// loopbackHost reports whether a host name or address without port can only
// mean this machine. (The config package has it for addresses to listen on.)
func loopbackHost(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

func hostOnly(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}

func viaUnix(r *http.Request) bool {
	addr, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && addr.Network() == "unix"
}
