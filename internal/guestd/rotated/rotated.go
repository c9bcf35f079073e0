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
	return durable.WriteFile(filepath.Join(dir, file), doc)
}
