package secrets

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"

	"github.com/fusevm/fuse/internal/fleet"
)

// A sealed value is: version (1 byte), key id (8), nonce (12), ciphertext and
// tag (16 more than the plain text). In the clear it is: version and plain text.
const (
	sealVersion  = 1
	clearVersion = 0xfe
	keyIDSize    = 8
	nonceSize    = 12
	tagSize      = 16
	headSize     = 1 + keyIDSize
)

// ClearKeyID stands for a key id where nothing is encrypted.
const ClearKeyID = "none"

// Sealer encrypts with AES-256-GCM under one key and opens what that key or an
// older one sealed. It is safe for concurrent use.
type Sealer struct {
	current *ringKey // nil: nothing is encrypted
	ring    map[[keyIDSize]byte]*ringKey
	clear   bool // opens what was stored in the clear
}

type ringKey struct {
	aead cipher.AEAD
	id   [keyIDSize]byte
	text string
}

// NewSealer makes a sealer that seals with key and also opens what the old ones
// sealed. It panics on the zero Key, which would seal with a key that everyone
// knows.
func NewSealer(key Key, old ...Key) *Sealer {
	s := &Sealer{current: newRingKey(key), ring: map[[keyIDSize]byte]*ringKey{}}
	for _, k := range old {
		r := newRingKey(k)
		s.ring[r.id] = r
	}
	s.ring[s.current.id] = s.current
	return s
}

// NewClear makes a sealer that encrypts nothing, for an operator who insists;
// it still opens what the old keys sealed.
func NewClear(old ...Key) *Sealer {
	s := &Sealer{ring: map[[keyIDSize]byte]*ringKey{}, clear: true}
	for _, k := range old {
		r := newRingKey(k)
		s.ring[r.id] = r
	}
	return s
}

// TakingClear returns a sealer like s that also opens what was stored in the
// clear. Only a rekey uses it: to a server such a value is one that somebody
// may have put there.
func (s *Sealer) TakingClear() *Sealer {
	c := *s
	c.clear = true
	return &c
}

func newRingKey(key Key) *ringKey {
	if !key.set {
		panic("secrets: the zero Key seals nothing")
	}
	block, err := aes.NewCipher(key.bytes[:])
	if err != nil {
		panic(err) // only a wrong key size, which the type excludes
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic(err) // only a wrong block size
	}
	r := &ringKey{aead: aead, text: key.ID()}
	hex.Decode(r.id[:], []byte(r.text)) //nolint:errcheck // made by EncodeToString
	return r
}

// KeyID is the id of the key that seals; ClearKeyID where none does.
func (s *Sealer) KeyID() string {
	if s.current == nil {
		return ClearKeyID
	}
	return s.current.text
}

// KeyIDOf is the id of the key that sealed a value, ClearKeyID for one in the
// clear; ok is false for what no Sealer made.
func KeyIDOf(sealed []byte) (id string, ok bool) {
	switch {
	case len(sealed) > 0 && sealed[0] == clearVersion:
		return ClearKeyID, true
	case len(sealed) >= headSize+nonceSize+tagSize && sealed[0] == sealVersion:
		return hex.EncodeToString(sealed[1:headSize]), true
	}
	return "", false
}

// Opens reports whether this sealer has the key of a value.
func (s *Sealer) Opens(sealed []byte) bool {
	id, ok := KeyIDOf(sealed)
	if id == ClearKeyID {
		return s.clear
	}
	return ok && s.ring[[keyIDSize]byte(sealed[1:headSize])] != nil
}

// Seal encrypts plain so that only the same key, kind and id open it: a sealed
// value copied to another row or column does not open there.
func (s *Sealer) Seal(kind, id string, plain []byte) ([]byte, error) {
	if s.current == nil {
		return append([]byte{clearVersion}, plain...), nil
	}
	out := make([]byte, headSize+nonceSize, headSize+nonceSize+len(plain)+tagSize)
	out[0] = sealVersion
	copy(out[1:], s.current.id[:])
	nonce := out[headSize : headSize+nonceSize]
	if _, err := rand.Read(nonce); err != nil {
		return nil, fleet.Wrap(fleet.CodeInternal, err, "seal "+kind)
	}
	return s.current.aead.Seal(out, nonce, plain, associated(out[:headSize], kind, id)), nil
}

// Open decrypts what Seal made. Another key, another kind or id, and a changed
// byte are told apart where that can be known, and give no plain text.
func (s *Sealer) Open(kind, id string, sealed []byte) ([]byte, error) {
	if len(sealed) > 0 && sealed[0] == clearVersion {
		if !s.clear {
			return nil, fleet.Errorf(fleet.CodeInternal, "open %s of %s: it was stored without encryption", kind, id).
				With(fleet.DetailRemedy, "run fuse server rekey")
		}
		return append([]byte{}, sealed[1:]...), nil
	}
	if len(sealed) < headSize+nonceSize+tagSize {
		return nil, fleet.Errorf(fleet.CodeInternal, "open %s of %s: %d bytes are too few for a sealed value", kind, id, len(sealed))
	}
	if sealed[0] != sealVersion {
		return nil, fleet.Errorf(fleet.CodeInternal, "open %s of %s: sealed in version %d, this binary knows %d", kind, id, sealed[0], sealVersion)
	}
	head, rest := sealed[:headSize], sealed[headSize:]
	key := s.ring[[keyIDSize]byte(head[1:])]
	if key == nil {
		return nil, fleet.Errorf(fleet.CodeInternal, "open %s of %s: sealed with key %x, the configured key is %s", kind, id, head[1:], s.KeyID()).
			With(fleet.DetailRemedy, "start with the key that sealed it (the key file in the data directory, or TOKEN_ENCRYPTION_KEY)")
	}
	plain, err := key.aead.Open(nil, rest[:nonceSize], rest[nonceSize:], associated(head, kind, id))
	if err != nil {
		return nil, fleet.Errorf(fleet.CodeInternal, "open %s of %s: the value was changed or belongs to another row", kind, id)
	}
	return plain, nil
}

// Reseal returns a value sealed with the current key instead of whichever
// sealed it; changed is false for one that the current key has sealed.
func (s *Sealer) Reseal(kind, id string, sealed []byte) (out []byte, changed bool, err error) {
	if keyID, _ := KeyIDOf(sealed); len(sealed) == 0 || keyID == s.KeyID() {
		return sealed, false, nil
	}
	plain, err := s.Open(kind, id, sealed)
	if err != nil {
		return nil, false, err
	}
	out, err = s.Seal(kind, id, plain)
	return out, err == nil, err
}

// associated binds the head, kind and id; the lengths keep ("ab","c") and
// ("a","bc") apart.
func associated(head []byte, kind, id string) []byte {
	aad := make([]byte, 0, len(head)+len(kind)+len(id)+4)
	aad = append(aad, head...)
	aad = binary.BigEndian.AppendUint32(aad, uint32(len(kind)))
	aad = append(aad, kind...)
	return append(aad, id...)
}
