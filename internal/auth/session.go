package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Sessions are kept in memory: a restart ends them all.
const (
	cookieName  = "fuse_session"
	sessionTTL  = 7 * 24 * time.Hour
	maxSessions = 1024
)

// sessions are the logged-in browsers, by the hash of their cookie.
type sessions struct {
	mu sync.Mutex
	// byHash is bounded by maxSessions; the oldest goes first.
	byHash map[[sha256.Size]byte]session
}

// session is bound to the credential that it was traded for: of an API key
// only the id is kept, so that the session has the key's role and ends with it.
type session struct {
	keyID   string // empty: the server's own token
	expires time.Time
}

func (s *sessions) add(keyID string) (cookie string) {
	cookie = rand.Text() + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byHash == nil {
		s.byHash = map[[sha256.Size]byte]session{}
	}
	s.makeRoomLocked()
	s.byHash[sha256.Sum256([]byte(cookie))] = session{keyID, time.Now().Add(sessionTTL)}
	return cookie
}

func (s *sessions) makeRoomLocked() {
	if len(s.byHash) < maxSessions {
		return
	}
	now := time.Now()
	var oldest [sha256.Size]byte
	var found bool
	for h, sess := range s.byHash {
		if now.After(sess.expires) {
			delete(s.byHash, h)
		} else if !found || sess.expires.Before(s.byHash[oldest].expires) {
			oldest, found = h, true
		}
	}
	if len(s.byHash) >= maxSessions {
		delete(s.byHash, oldest)
	}
}

func (s *sessions) find(cookie string) (keyID string, ok bool) {
	h := sha256.Sum256([]byte(cookie))
	s.mu.Lock()
	defer s.mu.Unlock()
	sess, ok := s.byHash[h]
	if !ok || time.Now().After(sess.expires) {
		delete(s.byHash, h)
		return "", false
	}
	return sess.keyID, true
}

// bySession finds the principal of a session as it is now.
func (g *Gate) bySession(cookie string) (Principal, error) {
	keyID, ok := g.sessions.find(cookie)
	if !ok {
		return Principal{}, fleet.Errorf(fleet.CodeUnauthorized, "the session is over; log in again")
	}
	if keyID == "" {
		p := Master
		p.held = &credential{gate: g, session: cookie}
		return p, nil
	}
	key, ok := g.keys.Key(keyID)
	if !ok {
		return Principal{}, errOver(keyID, "gone")
	}
	if why, ok := key.Usable(time.Now()); !ok {
		return Principal{}, errOver(keyID, why)
	}
	g.keys.Used(keyID)
	return g.principalOf(&key, cookie), nil
}

func (s *sessions) end(cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byHash, sha256.Sum256([]byte(cookie)))
}

// Login trades the server's token or an API key for a session cookie. A server
// without token has nothing to check and hands one out all the same.
func (g *Gate) Login(r *http.Request, token string) (*http.Cookie, error) {
	var p Principal
	err := ownPage(r) // another site must not log a browser in as somebody else
	switch {
	case err != nil:
	case !g.open:
		p, err = g.byToken(token)
	case strings.HasPrefix(token, keyPrefix):
		p, err = g.byKey(token)
	default:
		err = LocalName(r)
	}
	if err != nil {
		return nil, err
	}
	return g.cookie(g.sessions.add(p.KeyID), int(sessionTTL/time.Second)), nil
}

// Logout ends the session of a request, if it has one, and returns the cookie
// that makes a browser forget it. Other sites end no session.
func (g *Gate) Logout(r *http.Request) (*http.Cookie, error) {
	if err := ownPage(r); err != nil {
		return nil, err
	}
	if c, err := r.Cookie(cookieName); err == nil {
		g.sessions.end(c.Value)
	}
	return g.cookie("", -1), nil
}

func (g *Gate) cookie(value string, maxAge int) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // Secure is the operator's: without TLS of its own the server may be behind a proxy, or on loopback
		Name: cookieName, Value: value, Path: "/", MaxAge: maxAge,
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: g.secure,
	}
}
