package secrets

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/fusevm/fuse/internal/durable"
	"github.com/fusevm/fuse/internal/fleet"
)

const keySize = 32

// Key is an AES-256 key. It prints as its id, never as its bytes.
type Key struct {
	bytes [keySize]byte
	set   bool
}

// ID is the first 16 hex digits of the key's SHA-256: it tells keys apart and
// gives nothing away.
func (k Key) ID() string {
	sum := sha256.Sum256(k.bytes[:])
	return hex.EncodeToString(sum[:keyIDSize])
}

// Hex is the key itself in 64 hex digits, for a file of mode 0600.
func (k Key) Hex() string { return hex.EncodeToString(k.bytes[:]) }

// String keeps the key out of logs and errors.
func (k Key) String() string { return "key " + k.ID() }

// GoString keeps the key out of %#v.
func (k Key) GoString() string { return k.String() }

// ParseKey reads a key of 64 hex digits; surrounding white space is ignored.
func ParseKey(hex64 string) (Key, error) {
	k := Key{set: true}
	text := strings.TrimSpace(hex64)
	if len(text) != 2*keySize {
		return Key{}, keyError("it has %d characters", len(text))
	}
	if _, err := hex.Decode(k.bytes[:], []byte(text)); err != nil {
		return Key{}, keyError("it holds something that is no hex digit")
	}
	return k, nil
}

func keyError(format string, args ...any) error {
	return fleet.Errorf(fleet.CodeInvalidArgument, "the encryption key cannot be read: "+format, args...).
		With(fleet.DetailLimit, "64 hex digits").
		With(fleet.DetailRemedy, "make one with: openssl rand -hex 32")
}

// LoadOrCreateKey reads the key file at path, or makes it with mode 0600 when
// there is none. A file that others can read is refused.
func LoadOrCreateKey(path string) (Key, error) {
	for range 2 {
		k, err := loadKey(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return k, err
		}
		// Another process may win the race to create it; then read its key.
		if k, err = createKey(path); !errors.Is(err, fs.ErrExist) {
			return k, err
		}
	}
	return Key{}, fmt.Errorf("key file %s: it comes and goes", path)
}

func loadKey(path string) (Key, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Key{}, fmt.Errorf("key file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return Key{}, fmt.Errorf("key file %s: it is no regular file", path)
	}
	if perm := info.Mode().Perm(); perm&0o077 != 0 {
		return Key{}, fleet.Errorf(fleet.CodeInvalidArgument, "key file %s: its mode %04o lets others read it", path, perm).
			With(fleet.DetailRemedy, "chmod 600 "+path)
	}
	if info.Size() > 1024 {
		return Key{}, fmt.Errorf("key file %s: %w", path, keyError("the file has %d bytes", info.Size()))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return Key{}, fmt.Errorf("key file: %w", err)
	}
	k, err := ParseKey(string(text))
	if err != nil {
		return Key{}, fmt.Errorf("key file %s: %w", path, err)
	}
	return k, nil
}

// createKey makes the file complete before it has its name, so that a crash
// leaves no half a key behind and what is sealed later can be opened.
func createKey(path string) (k Key, err error) {
	k.set = true
	if _, err := rand.Read(k.bytes[:]); err != nil {
		return Key{}, fmt.Errorf("make key: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".key-*") // 0600
	if err != nil {
		return Key{}, fmt.Errorf("make key file: %w", err)
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(k.Hex() + "\n")
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Link(tmp.Name(), path) // refuses to replace, unlike rename
	}
	if err == nil {
		err = durable.SyncDir(filepath.Dir(path))
	}
	if err != nil {
		return Key{}, fmt.Errorf("make key file: %w", err)
	}
	return k, nil
}
