package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// An API key reads fuse_sk_ID_SECRET: 16 hex digits that find it and 256
// random bits in base64url that prove it.
const (
	keyPrefix   = "fuse_sk_"
	keyIDPrefix = "ak_"
	idDigits    = 16
	secretBytes = 32
)

var keyLength = len(keyPrefix) + idDigits + 1 + base64.RawURLEncoding.EncodedLen(secretBytes)

// Keys is where a Gate looks API keys up. Both methods answer at once.
type Keys interface {
	// Key returns the key of that id as it is now.
	Key(id string) (fleet.APIKey, bool)
	// Used takes note that the key was.
	Used(id string)
}

// NewKey makes the id of a new API key, its text, which is told once, and the
// hash of its secret, which is kept.
func NewKey() (id, text string, hash []byte) {
	raw := make([]byte, idDigits/2+secretBytes)
	_, _ = rand.Read(raw) // never fails
	digits := hex.EncodeToString(raw[:idDigits/2])
	secret := base64.RawURLEncoding.EncodeToString(raw[idDigits/2:])
	sum := sha256.Sum256([]byte(secret))
	return keyIDPrefix + digits, keyPrefix + digits + "_" + secret, sum[:]
}

// parseKey splits the text of a key. It decides by form alone, so it tells
// nothing that the caller does not hold already.
func parseKey(text string) (id, secret string, ok bool) {
	rest, ok := strings.CutPrefix(text, keyPrefix)
	if !ok || len(text) != keyLength || rest[idDigits] != '_' {
		return "", "", false
	}
	return keyIDPrefix + rest[:idDigits], rest[idDigits+1:], true
}

// byKey finds the principal of an API key. A key that does not exist costs what
// a wrong secret does, and only the holder of the right one hears that it is
// over.
func (g *Gate) byKey(text string) (Principal, error) {
	id, secret, ok := parseKey(text)
	switch {
	case !ok:
		return Principal{}, errToken()
	case g.keys == nil:
		return Principal{}, fleet.Errorf(fleet.CodeUnauthorized, "API keys do not count here: a standby does not know them, nor does a listener of metrics").
			With(fleet.DetailRemedy, "show the server's own token, or ask the server that leads")
	}
	key, known := g.keys.Key(id)
	want := key.SecretHash
	if !known || len(want) != sha256.Size {
		want = make([]byte, sha256.Size)
	}
	sum := sha256.Sum256([]byte(secret))
	if subtle.ConstantTimeCompare(sum[:], want) != 1 || !known {
		return Principal{}, errToken()
	}
	if why, ok := key.Usable(time.Now()); !ok {
		return Principal{}, errOver(key.ID, why)
	}
	g.keys.Used(id)
	return g.principalOf(&key, ""), nil
}

func (g *Gate) principalOf(key *fleet.APIKey, session string) Principal {
	return Principal{
		Name: key.Owner, Role: key.Role, KeyID: key.ID, Label: key.Label,
		held: &credential{gate: g, session: session},
	}
}

func errToken() error {
	return fleet.Errorf(fleet.CodeUnauthorized, "the token is not valid").
		With(fleet.DetailRemedy, "correct it (the CLI takes it from --token, FUSE_TOKEN, FUSE_TOKEN_FILE or its context), or ask an admin for an API key")
}

func errOver(id, why string) error {
	return fleet.Errorf(fleet.CodeUnauthorized, "the API key %s is %s", id, why).
		With(fleet.DetailReason, why).With(fleet.DetailRemedy, "ask an admin for another: fuse key create")
}
