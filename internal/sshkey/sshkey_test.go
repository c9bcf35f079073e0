package sshkey_test

import (
	"bytes"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/fusevm/fuse/internal/sshkey"
)

func TestKeysAreReadAsSSHDoes(t *testing.T) {
	for _, kind := range []string{sshkey.Ed25519, sshkey.ECDSA, sshkey.RSA} {
		private, public, err := sshkey.Make(kind, "root@box")
		if err != nil {
			t.Fatal(err)
		}
		signer, err := ssh.ParsePrivateKey(private)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(ssh.MarshalAuthorizedKey(signer.PublicKey()), public) {
			t.Errorf("%s: the halves do not fit", kind)
		}
	}
	if _, _, err := sshkey.Make("dsa", ""); err == nil {
		t.Error("a kind that nobody knows was made")
	}
}
