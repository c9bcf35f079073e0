package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"sync"
	"time"
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

type session struct {
	principal Principal
	expires   time.Time
}

func (s *sessions) add(p Principal) (cookie string) {
	cookie = rand.Text() + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byHash == nil {
		s.byHash = map[[sha256.Size]byte]session{}
	}
	s.makeRoomLocked()
	s.byHash[sha256.Sum256([]byte(cookie))] = session{p, time.Now().Add(sessionTTL)}
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

func (s *sessions) find(cookie string) (Principal, bool) {
	h := sha256.Sum256([]byte(cookie))
	s.mu.Lock()
	defer s.mu.Unlock()
	sess, ok := s.byHash[h]
	if !ok || time.Now().After(sess.expires) {
		delete(s.byHash, h)
		return Principal{}, false
	}
	return sess.principal, true
}

func (s *sessions) end(cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byHash, sha256.Sum256([]byte(cookie)))
}

// Login trades the token for a session cookie. A server without token has
// nothing to check and hands one out all the same.
func (g *Gate) Login(r *http.Request, token string) (*http.Cookie, error) {
	p := Master
	var err error
	if g.open {
		err = LocalName(r)
	} else {
		p, err = g.byToken(token)
	}
	if err != nil {
		return nil, err
	}
	return g.cookie(g.sessions.add(p), int(sessionTTL/time.Second)), nil
}

// Logout ends the session of a request, if it has one, and returns the cookie
// that makes a browser forget it.
func (g *Gate) Logout(r *http.Request) *http.Cookie {
	if c, err := r.Cookie(cookieName); err == nil {
		g.sessions.end(c.Value)
	}
	return g.cookie("", -1)
}

func (g *Gate) cookie(value string, maxAge int) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // Secure is the operator's: without TLS of its own the server may be behind a proxy, or on loopback
		Name: cookieName, Value: value, Path: "/", MaxAge: maxAge,
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: g.secure,
	}
}
