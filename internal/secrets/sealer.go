package secrets

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"

	"github.com/fusevm/fuse/internal/fleet"
)

// A sealed value is: version (1 byte), key id (8), nonce (12), ciphertext and
// tag (16 more than the plain text).
const (
	sealVersion = 1
	keyIDSize   = 8
	nonceSize   = 12
	tagSize     = 16
	headSize    = 1 + keyIDSize
)

// Sealer encrypts with AES-256-GCM. It is safe for concurrent use.
type Sealer struct {
	aead  cipher.AEAD
	keyID [keyIDSize]byte
	id    string
}

// NewSealer makes a sealer for key. It panics on the zero Key, which would
// seal with a key that everyone knows.
func NewSealer(key Key) *Sealer {
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
	s := &Sealer{aead: aead, id: key.ID()}
	hex.Decode(s.keyID[:], []byte(s.id)) //nolint:errcheck // made by EncodeToString
	return s
}

// Seal encrypts plain so that only the same key, kind and id open it: a sealed
// value copied to another row or column does not open there.
func (s *Sealer) Seal(kind, id string, plain []byte) ([]byte, error) {
	out := make([]byte, headSize+nonceSize, headSize+nonceSize+len(plain)+tagSize)
	out[0] = sealVersion
	copy(out[1:], s.keyID[:])
	nonce := out[headSize : headSize+nonceSize]
	if _, err := rand.Read(nonce); err != nil {
		return nil, fleet.Wrap(fleet.CodeInternal, err, "seal "+kind)
	}
	return s.aead.Seal(out, nonce, plain, associated(out[:headSize], kind, id)), nil
}

// Open decrypts what Seal made. Another key, another kind or id, and a changed
// byte are told apart where that can be known, and give no plain text.
func (s *Sealer) Open(kind, id string, sealed []byte) ([]byte, error) {
	if len(sealed) < headSize+nonceSize+tagSize {
		return nil, fleet.Errorf(fleet.CodeInternal, "open %s of %s: %d bytes are too few for a sealed value", kind, id, len(sealed))
	}
	if sealed[0] != sealVersion {
		return nil, fleet.Errorf(fleet.CodeInternal, "open %s of %s: sealed in version %d, this binary knows %d", kind, id, sealed[0], sealVersion)
	}
	head, rest := sealed[:headSize], sealed[headSize:]
	if subtle.ConstantTimeCompare(head[1:], s.keyID[:]) != 1 {
		return nil, fleet.Errorf(fleet.CodeInternal, "open %s of %s: sealed with key %x, the configured key is %s", kind, id, head[1:], s.id).
			With(fleet.DetailRemedy, "start with the key that sealed it (the key file in the data directory, or TOKEN_ENCRYPTION_KEY)")
	}
	plain, err := s.aead.Open(nil, rest[:nonceSize], rest[nonceSize:], associated(head, kind, id))
	if err != nil {
		return nil, fleet.Errorf(fleet.CodeInternal, "open %s of %s: the value was changed or belongs to another row", kind, id)
	}
	return plain, nil
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
