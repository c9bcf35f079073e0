package secrets_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/secrets"
)

func TestARingOpensWhatOldKeysSealed(t *testing.T) {
	old, key := testKey(t, "a"), testKey(t, "b")
	was := sealed(t, secrets.NewSealer(old), "token", "u1", []byte("secret"))
	ring := secrets.NewSealer(key, old)
	if got, err := ring.Open("token", "u1", was); err != nil || string(got) != "secret" {
		t.Fatalf("%q, %v", got, err)
	}
	if _, err := ring.Open("token", "u2", was); err == nil {
		t.Error("an old key opens another row's value")
	}
	out, changed, err := ring.Reseal("token", "u1", was)
	if err != nil || !changed {
		t.Fatalf("changed %v, %v", changed, err)
	}
	if id, _ := secrets.KeyIDOf(out); id != key.ID() || ring.KeyID() != key.ID() {
		t.Errorf("resealed with %s, want %s", id, key.ID())
	}
	if got, err := secrets.NewSealer(key).Open("token", "u1", out); err != nil || string(got) != "secret" {
		t.Errorf("the new key alone: %q, %v", got, err)
	}
	again, changed, err := ring.Reseal("token", "u1", out)
	if err != nil || changed || !bytes.Equal(again, out) {
		t.Errorf("resealed twice: %v, %v", changed, err)
	}
	if _, _, err := ring.Reseal("token", "u2", was); err == nil {
		t.Error("another row's value was resealed")
	}
	if _, _, err := secrets.NewSealer(key).Reseal("token", "u1", was); err == nil || !strings.Contains(err.Error(), old.ID()) {
		t.Errorf("without the old key: %v", err)
	}
	for value, want := range map[string]bool{string(was): true, string(out): true, "": false, "short": false, "\xfeclear": false} {
		if got := ring.Opens([]byte(value)); got != want {
			t.Errorf("opens %q: %v", value, got)
		}
	}
}

// A server with a key takes nothing that lies in the clear: whoever can write
// into the store could put it there.
func TestInTheClear(t *testing.T) {
	key := testKey(t, "a")
	plain := secrets.NewClear(key)
	out := sealed(t, plain, "token", "u1", []byte("secret"))
	if id, ok := secrets.KeyIDOf(out); !ok || id != secrets.ClearKeyID || plain.KeyID() != id {
		t.Errorf("key id %q %v", id, ok)
	}
	if got, err := plain.Open("token", "u1", out); err != nil || string(got) != "secret" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := plain.Open("token", "u1", sealed(t, secrets.NewSealer(key), "token", "u1", []byte("secret"))); err != nil || string(got) != "secret" {
		t.Errorf("what the old key sealed: %q, %v", got, err)
	}
	strict := secrets.NewSealer(key)
	if got, err := strict.Open("token", "u1", out); err == nil || got != nil || fleet.CodeOf(err) != fleet.CodeInternal {
		t.Errorf("with a key: %q, %v", got, err)
	}
	if strict.Opens(out) || !strict.TakingClear().Opens(out) {
		t.Error("who opens what is in the clear")
	}
	resealed, changed, err := strict.TakingClear().Reseal("token", "u1", out)
	if err != nil || !changed || bytes.Contains(resealed, []byte("secret")) {
		t.Fatalf("%v, %v", changed, err)
	}
	if got, err := strict.Open("token", "u1", resealed); err != nil || string(got) != "secret" {
		t.Errorf("after the reseal: %q, %v", got, err)
	}
}
