package guestd

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/rotated"
	"github.com/fusevm/fuse/internal/guestwire"
)

// After a rotation the old token opens nothing and the old certificate is not
// shown; a command that runs goes on, and nothing dials anew.
func TestRotate(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	old := guestwire.NewClient(g.dial, testToken)
	defer old.Close()
	stdin := make(blockingReader)
	running := make(chan fleet.ExecStatus, 1)
	var out bytes.Buffer
	go func() {
		status, err := g.Exec(t.Context(), sh("read x; echo got $x"), fleet.Stdio{Stdin: stdin, Stdout: &out})
		if err != nil {
			t.Error(err)
		}
		running <- status
	}()
	if _, err := old.Info(t.Context()); err != nil {
		t.Fatal(err)
	}
	cert, key := certificate(t)
	for range 2 { // a repeat is success
		if err := g.Rotate(t.Context(), "new-token", cert, key); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := g.Info(t.Context()); err != nil {
		t.Errorf("with the new token: %v", err)
	}
	if _, err := old.Info(t.Context()); err == nil || !strings.Contains(err.Error(), noTokenMessage) {
		t.Errorf("with the old token: %v", err)
	}
	for token, want := range map[string]bool{testToken: false, "new-token": true} {
		if takes, err := old.Takes(t.Context(), token); err != nil || takes != want {
			t.Errorf("takes %s: %v, %v", token, takes, err)
		}
	}
	g.certPEM = cert
	if code, _ := g.get(t, "/v1/info", testToken); code != 401 {
		t.Errorf("published port with the old token: %d", code)
	}
	if code, _ := g.get(t, "/v1/info", "new-token"); code != 200 {
		t.Errorf("published port with the new token: %d", code)
	}
	stdin <- []byte("it\n")
	close(stdin)
	if status := <-running; status.ExitCode != 0 || out.String() != "got it\n" {
		t.Errorf("the command that ran: %+v, %q", status, out.String())
	}

	// A client that does not know that it was done already finds out.
	late := guestwire.NewClient(g.dial, testToken)
	defer late.Close()
	if err := late.Rotate(t.Context(), "new-token", cert, key); err != nil {
		t.Errorf("a repeat with the old token: %v", err)
	}
	if _, err := late.Info(t.Context()); err != nil {
		t.Errorf("after the repeat: %v", err)
	}
	if err := old.Rotate(t.Context(), "stolen", cert, key); err == nil {
		t.Error("the holder of the old token rotated")
	}
}

// blockingReader reads what is sent to it.
type blockingReader chan []byte

func (r blockingReader) Read(p []byte) (int, error) {
	b, ok := <-r
	if !ok {
		return 0, io.EOF
	}
	return copy(p, b), nil
}

func TestABadRotationChangesNothing(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	cert, key := certificate(t)
	_, otherKey := certificate(t)
	for name, c := range map[string]struct {
		token     string
		cert, key []byte
	}{
		"no token": {"", cert, key}, "white space": {"a b", cert, key}, "no certificate": {"new", nil, key},
		"another key": {"new", cert, otherKey}, "no PEM": {"new", []byte("x"), []byte("y")},
	} {
		if err := g.Rotate(t.Context(), c.token, c.cert, c.key); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := g.Info(t.Context()); err != nil {
		t.Errorf("the token: %v", err)
	}
	if entries, err := os.ReadDir(g.fuseDir); err == nil && len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}

// A rotation outlives a reboot of the same machine, and counts not in a machine
// that has a copy of the disk. No secret of it is on the disk.
func TestARotationOutlivesAReboot(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	cert, key := certificate(t)
	if err := g.Rotate(t.Context(), "new-token", cert, key); err != nil {
		t.Fatal(err)
	}
	hash, ok := rotated.Read(g.etcDir, testToken)
	if !ok || hash != rotated.Hash("new-token") {
		t.Errorf("kept %x, %v", hash, ok)
	}
	if _, ok := rotated.Read(g.etcDir, "token of a fork"); ok {
		t.Error("a machine that was made with another token takes it")
	}
	id := newIdentity("vm-1", hash, cert, key)
	if id.knows(testToken) || !id.knows("new-token") {
		t.Error("after a reboot the tokens are mixed up")
	}
	entries, err := os.ReadDir(g.etcDir)
	if err != nil || len(entries) != 1 {
		t.Errorf("on the disk: %v, %v", entries, err)
	}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(g.etcDir, e.Name()))
		if err != nil || strings.Contains(string(text), "new-token") || strings.Contains(string(text), "PRIVATE") {
			t.Errorf("%s holds a secret (%v)", e.Name(), err)
		}
	}
	for name, want := range map[string]string{"auth-token": "new-token", "tls/cert.pem": string(cert), "tls/key.pem": string(key)} {
		got, err := os.ReadFile(filepath.Join(g.fuseDir, name))
		info, serr := os.Stat(filepath.Join(g.fuseDir, name))
		if err != nil || serr != nil || string(got) != want || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	for _, broken := range []string{"", "{", "null", strings.Replace(mustRead(t, g.etcDir), `"token":"`, `"token":"zz`, 1)} {
		if err := os.WriteFile(filepath.Join(g.etcDir, "rotated.json"), []byte(broken), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok := rotated.Read(g.etcDir, testToken); ok {
			t.Errorf("%q counts", broken)
		}
	}
}

func mustRead(t *testing.T, dir string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "rotated.json"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
