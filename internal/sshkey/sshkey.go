// Package sshkey makes ssh host keys, in the form of the files of sshd.
package sshkey

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"fmt"

	"golang.org/x/crypto/ssh"
)

// Kinds of keys that Make makes, as they stand in the names of sshd's files.
const (
	Ed25519 = "ed25519"
	ECDSA   = "ecdsa"
	RSA     = "rsa"
)

// rsaBits is what ssh-keygen makes.
const rsaBits = 3072

// Make makes a key of a kind; private and public are the contents of the two
// files. An RSA key takes a second, and many under emulation.
func Make(kind, comment string) (private, public []byte, err error) {
	var key crypto.Signer
	switch kind {
	case Ed25519:
		_, key, err = ed25519.GenerateKey(rand.Reader)
	case ECDSA:
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case RSA:
		key, err = rsa.GenerateKey(rand.Reader, rsaBits)
	default:
		return nil, nil, fmt.Errorf("ssh host keys of kind %q are not known", kind)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("make an ssh host key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(key, comment)
	if err != nil {
		return nil, nil, fmt.Errorf("encode an ssh host key: %w", err)
	}
	pub, err := ssh.NewPublicKey(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("encode an ssh host key: %w", err)
	}
	return pem.EncodeToMemory(block), ssh.MarshalAuthorizedKey(pub), nil
}
