// Package rotated keeps that a machine's token was rotated over its reboots,
// which bring back the boot configuration with the token that the machine was
// made with. What it keeps on the machine's disk is no secret: with it the dead
// token stays dead, and the living one is told by its hash.
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

// file, in a directory of the machine's disk, holds what is kept.
const file = "rotated.json"

// record is its content, hashes in hex.
type record struct {
	// Boot is that of the boot configuration's token: a copy of this disk in
	// another machine has another token there, and this does not count in it.
	Boot  string `json:"boot"`
	Token string `json:"token"`
}

// Hash is what is kept of a token.
func Hash(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }

// Read returns the hash of the token of the last rotation that was kept in dir,
// of a machine whose boot configuration has that token; false if there is none.
func Read(dir, bootToken string) (hash [sha256.Size]byte, ok bool) {
	var r record
	raw, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil || json.Unmarshal(raw, &r) != nil {
		return hash, false
	}
	boot := Hash(bootToken)
	if subtle.ConstantTimeCompare([]byte(r.Boot), []byte(hex.EncodeToString(boot[:]))) != 1 || len(r.Token) != 2*len(hash) {
		return hash, false
	}
	_, err = hex.Decode(hash[:], []byte(r.Token))
	return hash, err == nil
}

// Write keeps in dir that token has taken the place of the boot configuration's,
// whose hash is boot.
func Write(dir string, boot [sha256.Size]byte, token string) error {
	hash := Hash(token)
	doc, err := json.Marshal(record{Boot: hex.EncodeToString(boot[:]), Token: hex.EncodeToString(hash[:])})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return Replace(filepath.Join(dir, file), doc)
}

// Replace puts a file of mode 0600 in place of whatever path is, in one step
// that survives a crash; it follows no links.
func Replace(path string, data []byte) error {
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
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
