package playguard

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/cli/kit"
	"github.com/fusevm/fuse/internal/playguard/sshx"
)

// Somebody who names a fingerprint is not asked to take another one, and not
// told it as if it were the right one.
func TestAnotherHostKeyThanNamed(t *testing.T) {
	const shown = "SHA256:shown"
	for name, c := range map[string]struct {
		named []string
		taken bool
	}{
		"that one":       {[]string{shown}, true},
		"among others":   {[]string{"SHA256:jump", shown}, true},
		"another one":    {[]string{"SHA256:other"}, false},
		"only the jumps": {[]string{"SHA256:jump"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			x := &adding{marquees: marquees{&app{Tools: kit.Tools{
				In: strings.NewReader("y\n"), Err: io.Discard, IsTerminal: func(any) bool { return true },
				Progress: func(string, ...any) {},
				Exit:     func(_ int, err error) error { return err },
				Usage:    fmt.Errorf,
			}}}, hostKeys: c.named, acceptNew: true, hops: []sshx.Hop{{Address: "h:22"}}}
			err := x.confirm(map[string]string{"scope": "h:22", "host_key": "ssh-ed25519 AAAA", "fingerprint": shown})
			if c.taken != (err == nil) || c.taken != (x.req.HostKey == "ssh-ed25519 AAAA") {
				t.Errorf("taken: %q, error: %v", x.req.HostKey, err)
			}
			if err != nil && !strings.Contains(err.Error(), "not what --host-key names") {
				t.Error(err)
			}
		})
	}
}
