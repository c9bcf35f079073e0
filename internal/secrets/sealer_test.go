package secrets_test

import (
	"bytes"
	"testing"

	"github.com/fusevm/fuse/internal/secrets"
)

func newKey(t testing.TB) secrets.Key {
	t.Helper()
	k, err := secrets.LoadOrCreateKey(t.TempDir() + "/key")
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestSealRoundTrip(t *testing.T) {
	s := secrets.NewSealer(newKey(t))
	for _, plain := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte("ab"), 1<<16)} {
		sealed, err := s.Seal("token", "u1", plain)
		if err != nil {
			t.Fatal(err)
		}
		if len(plain) > 8 && bytes.Contains(sealed, plain[:8]) {
			t.Error("the plain text is in the sealed value")
		}
		got, err := s.Open("token", "u1", sealed)
		if err != nil || !bytes.Equal(got, plain) {
			t.Errorf("opened %d bytes of %d, %v", len(got), len(plain), err)
		}
	}
}
