package scrub_test

import (
	"bytes"
	"crypto/rand"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/fusevm/fuse/internal/guestd/scrub"
)

// dirty leaves copies of a secret on the heap, some of them garbage, which
// others may be given the place of, and returns a hundred that are not.
func dirty(secret string) (kept []string) {
	for range 100 {
		kept = append(kept, strings.Clone("Bearer "+secret))
		_ = bytes.Repeat([]byte(secret), 10)
	}
	return kept
}

//go:noinline
func fresh() (string, *byte) {
	raw := make([]byte, 24)
	_, _ = rand.Read(raw)
	const hex = "0123456789abcdef"
	out := make([]byte, 0, 48)
	for _, b := range raw {
		out = append(out, hex[b>>4], hex[b&15])
	}
	return string(out), &out[0]
}

func TestNothingOfASecretIsLeft(t *testing.T) {
	secret, _ := fresh()
	mask := []byte(secret)
	for i := range mask {
		mask[i] ^= 0x55 // to tell the secret again afterwards
	}
	kept := dirty(secret)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 { // others allocate meanwhile
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					check := bytes.Repeat([]byte{7}, 512)
					runtime.Gosched()
					if !bytes.Equal(check, bytes.Repeat([]byte{7}, 512)) {
						t.Error("somebody else's memory was overwritten")
					}
				}
			}
		})
	}
	n, err := scrub.Self([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	close(stop)
	wg.Wait()
	if n < 100 {
		t.Errorf("%d places were overwritten, fewer than were made", n)
	}
	for _, k := range kept {
		if !strings.HasPrefix(k, "Bearer \x00\x00") {
			t.Errorf("a copy is left: %q", k)
		}
	}
	for i := range mask {
		mask[i] ^= 0x55
	}
	n, err = scrub.Self(mask)
	if err != nil {
		t.Fatal(err)
	}
	if n > 4 { // the mask itself, and copies that the test just made
		t.Errorf("%d places were left", n)
	}
}

func TestShortSecretsAreLeftAlone(t *testing.T) {
	if n, err := scrub.Self([]byte("x"), nil, []byte(os.Args[0])[:5]); n != 0 || err != nil {
		t.Error(n, err)
	}
}
