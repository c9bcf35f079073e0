package secrets_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/secrets"
)

// testKey makes a key whose bytes are all the same digit.
func testKey(t testing.TB, digit string) secrets.Key {
	t.Helper()
	k, err := secrets.ParseKey(strings.Repeat(digit, 64))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sealed(t testing.TB, s *secrets.Sealer, kind, id string, plain []byte) []byte {
	t.Helper()
	out, err := s.Seal(kind, id, plain)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSealRoundTrip(t *testing.T) {
	s := secrets.NewSealer(testKey(t, "a"))
	for _, plain := range [][]byte{nil, []byte("x"), bytes.Repeat([]byte("ab"), 1<<16)} {
		out := sealed(t, s, "token", "u1", plain)
		if len(plain) > 8 && bytes.Contains(out, plain[:8]) {
			t.Error("the plain text is in the sealed value")
		}
		if bytes.Equal(out, sealed(t, s, "token", "u1", plain)) {
			t.Error("two sealed values of one text are equal")
		}
		got, err := s.Open("token", "u1", out)
		if err != nil || !bytes.Equal(got, plain) {
			t.Errorf("opened %d bytes of %d, %v", len(got), len(plain), err)
		}
	}
}

func TestOpenRefusesAnotherPlace(t *testing.T) {
	s := secrets.NewSealer(testKey(t, "a"))
	out := sealed(t, s, "token", "u1", []byte("secret"))
	for _, place := range [][2]string{{"token", "u2"}, {"boot", "u1"}, {"toke", "nu1"}, {"tokenu", "1"}, {"", "tokenu1"}} {
		if plain, err := s.Open(place[0], place[1], out); err == nil || plain != nil || !strings.Contains(err.Error(), "belongs to another row") {
			t.Errorf("%q: %q, %v", place, plain, err)
		}
	}
}

func TestOpenNamesTheKeyThatIsMissing(t *testing.T) {
	mine, theirs := testKey(t, "a"), testKey(t, "b")
	out := sealed(t, secrets.NewSealer(theirs), "token", "u1", []byte("secret"))
	_, err := secrets.NewSealer(mine).Open("token", "u1", out)
	if fleet.CodeOf(err) != fleet.CodeInternal || !strings.Contains(err.Error(), theirs.ID()) || !strings.Contains(err.Error(), mine.ID()) {
		t.Errorf("error %v does not name keys %s and %s", err, theirs.ID(), mine.ID())
	}
	for _, k := range []secrets.Key{mine, theirs} {
		if strings.Contains(err.Error(), k.Hex()) {
			t.Error("the error holds a key")
		}
	}
}

// Any change of any byte, and any cut, is found.
func TestOpenRefusesWhatWasChanged(t *testing.T) {
	s := secrets.NewSealer(testKey(t, "a"))
	out := sealed(t, s, "token", "u1", []byte("secret"))
	for i := range out {
		changed := bytes.Clone(out)
		changed[i] ^= 1
		if plain, err := s.Open("token", "u1", changed); err == nil {
			t.Errorf("byte %d changed: opened to %q", i, plain)
		}
		if plain, err := s.Open("token", "u1", out[:i]); err == nil {
			t.Errorf("cut to %d bytes: opened to %q", i, plain)
		}
	}
	if _, err := s.Open("token", "u1", append(bytes.Clone(out), 0)); err == nil {
		t.Error("with a byte more: opened")
	}
}

func TestTheZeroKeySealsNothing(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	secrets.NewSealer(secrets.Key{})
}

func TestNothingPrintsAKey(t *testing.T) {
	k := testKey(t, "a")
	c, err := secrets.NewVMCredentials("vm")
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%s", "%#v", "%q", "%x"} {
		text := fmt.Sprintf(verb, k) + fmt.Sprintf(verb, c)
		if strings.Contains(text, "aaaaaaaa") || strings.Contains(text, "170 170") || strings.Contains(text, c.Token) || strings.Contains(text, "PRIVATE") {
			t.Errorf("%s prints %s", verb, text)
		}
	}
}

func FuzzOpen(f *testing.F) {
	s := secrets.NewSealer(testKey(f, "a"))
	good := sealed(f, s, "token", "u1", []byte("secret"))
	f.Add("token", "u1", good)
	f.Add("token", "u1", good[:9])
	f.Add("", "", []byte{1})
	f.Fuzz(func(t *testing.T, kind, id string, value []byte) {
		plain, err := s.Open(kind, id, value)
		if err == nil && (kind != "token" || id != "u1" || string(plain) != "secret") {
			t.Errorf("opened what was never sealed there: %q %q", kind, id)
		}
	})
}
