package auth

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// shelf is a shelf of keys, as a store would be.
type shelf struct {
	mu   sync.Mutex
	keys map[string]fleet.APIKey
	used map[string]int
}

func (s *shelf) Key(id string) (fleet.APIKey, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.keys[id]
	return k, ok
}

func (s *shelf) Used(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used[id]++
}

// issue makes a key; change may alter it first.
func (s *shelf) issue(role fleet.Role, owner string, change ...func(*fleet.APIKey)) (id, text string) {
	id, text, hash := NewKey()
	k := fleet.APIKey{ID: id, Role: role, Owner: owner, SecretHash: hash}
	for _, c := range change {
		c(&k)
	}
	s.put(k)
	return id, text
}

func (s *shelf) put(k fleet.APIKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[k.ID] = k
}

func (s *shelf) revoke(id string) {
	k, _ := s.Key(id)
	k.RevokedAt = time.Now()
	s.put(k)
}

func newShelf() *shelf { return &shelf{keys: map[string]fleet.APIKey{}, used: map[string]int{}} }

func TestAuthenticateByKey(t *testing.T) {
	keys := newShelf()
	id, text := keys.issue(fleet.RoleUser, "team-a", func(k *fleet.APIKey) { k.Label = "ci" })
	_, other := keys.issue(fleet.RoleAdmin, "boss")
	expiredID, expired := keys.issue(fleet.RoleUser, "x", func(k *fleet.APIKey) { k.ExpiresAt = time.Now().Add(-time.Second) })
	revokedID, revoked := keys.issue(fleet.RoleUser, "x", func(k *fleet.APIKey) { k.RevokedAt = time.Now() })
	_, damaged := keys.issue(fleet.RoleAdmin, "x", func(k *fleet.APIKey) { k.SecretHash = nil })
	gate := New(Config{Token: "right", Keys: keys})

	p, err := gate.Authenticate(request(t, "Authorization", "Bearer "+text))
	if err != nil || p.Name != "team-a" || p.Role != fleet.RoleUser || p.KeyID != id || p.Actor() != "user:ci/"+id {
		t.Fatalf("%+v, %v", p, err)
	}
	if p, err := gate.Authenticate(request(t, "X-API-Key", text)); err != nil || p.KeyID != id {
		t.Errorf("X-API-Key: %+v, %v", p, err)
	}
	if keys.used[id] != 2 {
		t.Errorf("used %d times", keys.used[id])
	}
	mixed := text[:len(text)-43] + other[len(other)-43:] // one key's id, another's secret
	unknown := keyPrefix + "0123456789abcdef_" + text[len(text)-43:]
	for name, c := range map[string]struct{ token, says, not string }{
		"mixed":        {mixed, "not valid", id},
		"unknown id":   {unknown, "not valid", "ak_"},
		"cut":          {text[:len(text)-1], "not valid", id},
		"longer":       {text + "A", "not valid", id},
		"last changed": {text[:len(text)-2] + flip(text[len(text)-2]) + text[len(text)-1:], "not valid", id},
		"other case":   {strings.ToUpper(text), "not valid", id},
		"no secret":    {text[:len(text)-43], "not valid", id},
		"hash instead": {keyPrefix + id[3:] + "_" + strings.Repeat("A", 43), "not valid", id},
		"no hash kept": {damaged, "not valid", "ak_"},
		"expired":      {expired, expiredID + " is expired", "\x00"},
		"revoked":      {revoked, revokedID + " is revoked", "\x00"},
		// Who does not hold the secret does not hear how the key is.
		"expired, wrong secret": {expired[:len(expired)-43] + text[len(text)-43:], "not valid", expiredID},
		"a megabyte":            {keyPrefix + strings.Repeat("a", 1<<20), "not valid", "ak_"},
	} {
		_, err := gate.Authenticate(request(t, "Authorization", "Bearer "+c.token))
		if fleet.CodeOf(err) != fleet.CodeUnauthorized || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), c.not) {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), c.token) {
			t.Errorf("%s: the error holds the key", name)
		}
	}
	if _, err := New(Config{Token: "right"}).Authenticate(request(t, "Authorization", "Bearer "+text)); fleet.CodeOf(err) != fleet.CodeUnauthorized || !strings.Contains(err.Error(), "standby does not know them") {
		t.Errorf("without keys: %v", err)
	}
}

func flip(b byte) string {
	if b == 'A' {
		return "B"
	}
	return "A"
}

// Without a token of its own a server takes local callers for the master, but
// who shows a key is who the key says.
func TestKeysCountOnAnOpenServer(t *testing.T) {
	keys := newShelf()
	id, text := keys.issue(fleet.RoleRead, "x")
	gate := New(Config{Keys: keys})
	if p, err := gate.Authenticate(request(t, "Authorization", "Bearer "+text)); err != nil || p.Role != fleet.RoleRead {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := gate.Authenticate(request(t, "Authorization", "Bearer "+text, "Host", "evil.example")); fleet.CodeOf(err) != fleet.CodeForbidden {
		t.Errorf("under another name: %v", err)
	}
	keys.revoke(id)
	if _, err := gate.Authenticate(request(t, "Authorization", "Bearer "+text)); fleet.CodeOf(err) != fleet.CodeUnauthorized {
		t.Errorf("revoked: %v", err)
	}
	if p, err := gate.Authenticate(request(t)); err != nil || p != Master {
		t.Errorf("without key: %+v, %v", p, err)
	}
	// The hash of the empty token is no way in.
	if _, err := gate.Login(request(t), keyPrefix); fleet.CodeOf(err) != fleet.CodeUnauthorized {
		t.Errorf("login: %v", err)
	}
}

func TestASessionIsItsKey(t *testing.T) {
	keys := newShelf()
	id, text := keys.issue(fleet.RoleUser, "x")
	gate := New(Config{Token: "right", Keys: keys})
	cookie, err := gate.Login(request(t), text)
	if err != nil || strings.Contains(cookie.Value, "sk_") {
		t.Fatalf("%v, %v", cookie, err)
	}
	in := func() (Principal, error) {
		return gate.Authenticate(request(t, "Cookie", cookie.Name+"="+cookie.Value))
	}
	if p, err := in(); err != nil || p.Name != "x" || p.Role != fleet.RoleUser || p.KeyID != id {
		t.Errorf("%+v, %v", p, err)
	}
	k, _ := keys.Key(id)
	k.Role = fleet.RoleRead // as if another key of that id
	keys.put(k)
	if p, err := in(); err != nil || p.Role != fleet.RoleRead {
		t.Errorf("the session kept its role: %+v, %v", p, err)
	}
	keys.revoke(id)
	if _, err := in(); fleet.CodeOf(err) != fleet.CodeUnauthorized {
		t.Errorf("the session outlives its key: %v", err)
	}
}

func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := newShelf()
		id, text := keys.issue(fleet.RoleUser, "x", func(k *fleet.APIKey) { k.ExpiresAt = time.Now().Add(time.Minute) })
		stays, staysText := keys.issue(fleet.RoleUser, "y")
		gate := New(Config{Token: "right", Keys: keys})
		follow := func(header ...string) (context.Context, context.CancelFunc) {
			p, err := gate.Authenticate(request(t, header...))
			if err != nil {
				t.Fatal(err)
			}
			return p.Follow(t.Context())
		}
		login := func(token string) *http.Cookie {
			c, err := gate.Login(request(t), token)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		out := login("right")
		expiring, stop1 := follow("Authorization", "Bearer "+text)
		session, stop2 := follow("Cookie", out.Name+"="+out.Value)
		staying, stop3 := follow("Authorization", "Bearer "+staysText)
		master, stop4 := follow("Authorization", "Bearer right")
		<-time.After(50 * time.Second)
		for _, ctx := range []context.Context{expiring, session, staying, master} {
			if ctx.Err() != nil {
				t.Fatal("a stream ended too early")
			}
		}
		if _, err := gate.Logout(request(t, "Cookie", out.Name+"="+out.Value)); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Second)
		if fleet.CodeOf(context.Cause(session)) != fleet.CodeUnauthorized {
			t.Errorf("after the logout: %v", context.Cause(session))
		}
		<-time.After(10 * time.Second)
		if !strings.Contains(context.Cause(expiring).Error(), id+" is expired") {
			t.Errorf("after the expiry: %v", context.Cause(expiring))
		}
		keys.revoke(stays)
		<-time.After(2 * time.Second)
		if !strings.Contains(context.Cause(staying).Error(), stays+" is revoked") {
			t.Errorf("after the revocation: %v", context.Cause(staying))
		}
		if master.Err() != nil {
			t.Error("the master's stream ended")
		}
		for _, stop := range []context.CancelFunc{stop1, stop2, stop3, stop4} {
			stop()
		}
		if !errors.Is(master.Err(), context.Canceled) {
			t.Error("stop does not end the context")
		}
		<-time.After(2 * time.Second) // the bubble fails if the goroutine stays
	})
}
