// Package joinwire is what a host agent and a control plane say to each other
// when a host joins: both prove that they know the join token, over everything
// they say, and neither sends it. It follows SCRAM (RFC 5802) with one
// difference: the secret is random and long, so nothing has to slow a guess.
//
// Of a token the control plane keeps a Verifier: with it proofs are checked and
// given, but none can be made for a host.
package joinwire

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// Paths of the two calls below the server's URL.
const (
	ChallengePath = "/v1/host-join/challenge"
	JoinPath      = "/v1/host-join"
)

// Challenge asks for a nonce.
type Challenge struct {
	TokenID     string `json:"token_id"`
	ClientNonce string `json:"client_nonce"`
}

// Nonce is the answer to a Challenge.
type Nonce struct {
	ServerNonce string `json:"server_nonce"`
}

// Join asks to be registered. Document is a Host as JSON, exactly as it was
// proved.
type Join struct {
	TokenID     string `json:"token_id"`
	ClientNonce string `json:"client_nonce"`
	ServerNonce string `json:"server_nonce"`
	Document    []byte `json:"document"`
	Proof       []byte `json:"proof"`
}

// Host is what a host says of itself.
type Host struct {
	ID         string            `json:"id"`
	URL        string            `json:"url"` // where the control plane reaches its agent
	CertSHA256 string            `json:"cert_sha256,omitempty"`
	RegistryID string            `json:"registry_id"`
	Region     string            `json:"region,omitempty"`
	Labels     map[string]string `json:"labels,omitempty"`
	// SealedToken is the agent's bearer token for those who know the join token.
	SealedToken []byte `json:"sealed_token"`
}

// Joined is the control plane's answer, and its proof over it.
type Joined struct {
	Answer []byte `json:"answer"` // an Answer as JSON
	Proof  []byte `json:"proof"`
}

// Answer is what became of a host that joined.
type Answer struct {
	HostID   string   `json:"host_id"`
	Warnings []string `json:"warnings,omitempty"`
}

const (
	prefix     = "fjt_"
	secretSize = 32
)

var (
	encoding  = base32.StdEncoding.WithPadding(base32.NoPadding)
	tokenRule = regexp.MustCompile(`^fjt_([0-9A-HJKMNP-TV-Z]{26})_([A-Z2-7]{52})$`)
)

// ErrToken says that a text is no join token.
var ErrToken = errors.New("this is no join token: it has the form fjt_ID_SECRET, as 'fuse host join-token' prints it")

// Token is a join token as its holder has it.
type Token struct {
	ID     string
	secret []byte
}

// NewToken makes a token with that id, a ULID.
func NewToken(id string) (Token, error) {
	t := Token{ID: id, secret: make([]byte, secretSize)}
	if _, err := rand.Read(t.secret); err != nil {
		return Token{}, fmt.Errorf("make a join token: %w", err)
	}
	return t, nil
}

// ParseToken reads a token's text.
func ParseToken(text string) (Token, error) {
	m := tokenRule.FindStringSubmatch(strings.TrimSpace(text))
	if m == nil {
		return Token{}, ErrToken
	}
	secret, err := encoding.DecodeString(m[2])
	if err != nil || len(secret) != secretSize {
		return Token{}, ErrToken
	}
	return Token{ID: m[1], secret: secret}, nil
}

// Text is the token as people copy it.
func (t Token) Text() string { return prefix + t.ID + "_" + encoding.EncodeToString(t.secret) }

// String keeps the secret out of logs.
func (t Token) String() string { return prefix + t.ID }

func (t Token) clientKey() []byte { return mac(t.secret, "client key") }

// Verifier checks proofs of a token, and proves that its holder was given one.
type Verifier struct {
	StoredKey []byte
	ServerKey []byte
}

// Verifier is what is kept of the token.
func (t Token) Verifier() Verifier {
	stored := sha256.Sum256(t.clientKey())
	return Verifier{StoredKey: stored[:], ServerKey: mac(t.secret, "server key")}
}

// Exchange is what both sides have said up to the proof.
type Exchange struct {
	TokenID, ClientNonce, ServerNonce string
	Document                          []byte
}

// Of is the exchange that a Join ends.
func (j Join) Of() Exchange {
	return Exchange{j.TokenID, j.ClientNonce, j.ServerNonce, j.Document}
}

func (e Exchange) digest() []byte {
	h := sha256.New()
	for _, part := range [][]byte{[]byte("fuse join 1"), []byte(e.TokenID), []byte(e.ClientNonce), []byte(e.ServerNonce), e.Document} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write(part)
	}
	return h.Sum(nil)
}

// Prove is the holder's proof over the exchange. It does not help to make
// another one.
func (t Token) Prove(e Exchange) []byte {
	proof := t.clientKey()
	stored := sha256.Sum256(proof)
	subtle.XORBytes(proof, proof, mac(stored[:], "client", e.digest()))
	return proof
}

// Check reports whether a proof was made by a holder of the token.
func (v Verifier) Check(e Exchange, proof []byte) bool {
	if len(proof) != sha256.Size {
		return false
	}
	key := make([]byte, sha256.Size)
	subtle.XORBytes(key, proof, mac(v.StoredKey, "client", e.digest()))
	got := sha256.Sum256(key)
	return subtle.ConstantTimeCompare(got[:], v.StoredKey) == 1
}

// Answer is the control plane's proof over the exchange and its answer.
func (v Verifier) Answer(e Exchange, answer []byte) []byte {
	return mac(v.ServerKey, "server", e.digest(), answer)
}

// CheckAnswer reports whether an answer is from whoever made the token.
func (t Token) CheckAnswer(e Exchange, j Joined) bool {
	return hmac.Equal(t.Verifier().Answer(e, j.Answer), j.Proof)
}

// Seal encrypts the agent's own token for the control plane. The nonces make
// each exchange's key its own.
func (t Token) Seal(clientNonce, serverNonce, plain string) ([]byte, error) {
	aead, err := t.Verifier().aead(clientNonce, serverNonce)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	if _, err := io.ReadFull(rand.Reader, nonce); err != nil {
		return nil, err
	}
	return aead.Seal(nonce, nonce, []byte(plain), nil), nil
}

// Open decrypts what Seal made.
func (v Verifier) Open(clientNonce, serverNonce string, sealed []byte) (string, error) {
	aead, err := v.aead(clientNonce, serverNonce)
	if err != nil {
		return "", err
	}
	if len(sealed) < aead.NonceSize() {
		return "", errors.New("the sealed token is too short")
	}
	plain, err := aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], nil)
	return string(plain), err
}

func (v Verifier) aead(clientNonce, serverNonce string) (cipher.AEAD, error) {
	block, err := aes.NewCipher(mac(v.ServerKey, "seal", []byte(clientNonce), []byte(serverNonce)))
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// mac binds parts to a purpose, each with its length before it.
func mac(key []byte, purpose string, parts ...[]byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("fuse join 1 " + purpose))
	for _, p := range parts {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p))))
		h.Write(p)
	}
	return h.Sum(nil)
}
