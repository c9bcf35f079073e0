// Package rotated keeps the token and certificate of a machine's last rotation
// over its reboots, which bring back the boot configuration with the ones that
// the machine was made with.
package rotated

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fusevm/fuse/internal/durable"
)

// file, in the machine's own directory, holds what was kept.
const file = "identity.json"

// Identity is what a rotation put in the place of token and certificate.
type Identity struct {
	// Boot is the Mark of the boot configuration's token: a copy of this disk in
	// another machine has another token there, and this does not count in it.
	Boot  string `json:"boot"`
	Token string `json:"token"`
	Cert  string `json:"cert"` // PEM
	Key   string `json:"key"`
}

// Mark tells boot configurations apart by their token: its SHA-256 in hex.
func Mark(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// Read returns what the last rotation of a machine kept in dir, if its boot
// configuration has that token.
func Read(dir, bootToken string) (Identity, bool) {
	var id Identity
	raw, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil || json.Unmarshal(raw, &id) != nil {
		return Identity{}, false
	}
	same := subtle.ConstantTimeCompare([]byte(id.Boot), []byte(Mark(bootToken))) == 1
	return id, same && id.Token != "" && id.Cert != "" && id.Key != ""
}

// Write keeps an identity in dir and shows it where the existing guest agent
// keeps its credentials. What counts at the next boot is written last and whole.
func Write(dir string, id Identity) error {
	doc, err := json.Marshal(id)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "tls"), 0o700); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{
		{"auth-token", []byte(id.Token)}, {"tls/cert.pem", []byte(id.Cert)}, {"tls/key.pem", []byte(id.Key)}, {file, doc},
	} {
		if err := replace(filepath.Join(dir, f.name), f.data); err != nil {
			return err
		}
	}
	return nil
}

func replace(path string, data []byte) error {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // follows no link
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return durable.SyncDir(filepath.Dir(path))
}
