package runner_test

import (
	"bytes"
	"compress/zlib"
	"crypto/rand"
	"crypto/sha1" // git's names
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/gittest"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/testkit"
)

// A token that is revoked while its repository is being fetched costs that fetch and
// nothing else: what is there stays, clean, and goes forward with the next token.
func TestATokenIsRevokedInAFetch(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	repo := s.Repo("shop", map[string]string{"compose.yml": "one"})
	s.Token("first-t0ken")
	b := newBough(t)
	ask := branch(t, repo.URL, "main", credential(t, repo.URL, "first-t0ken")...)
	b.want(ask, "0")
	repo.Commit("main", map[string]string{"compose.yml": "two"})
	before := snapshot(t, b)
	release := s.Hold()
	asked := s.Asked()
	var revoke sync.WaitGroup
	revoke.Go(func() {
		for s.Asked() == asked && t.Context().Err() == nil {
			<-time.After(10 * time.Millisecond)
		}
		s.Token("second-t0ken") // what was asked already is answered
		release()
	})
	if status, text := b.run(ask); status != "128" || strings.Contains(text, "first-t0ken") {
		t.Errorf("%s %s", status, text)
	}
	revoke.Wait()
	if after := snapshot(t, b); after != before || !strings.HasPrefix(b.look(), unworked) {
		t.Errorf("it is changed, or counts as work: %s", b.look())
	}
	b.want(branch(t, repo.URL, "main", credential(t, repo.URL, "second-t0ken")...), "0")
	if b.read("compose.yml") != "two" {
		t.Error(b.read("compose.yml"))
	}
}

// loose puts a file into a repository as git keeps a single one.
func loose(t *testing.T, objects, text string) {
	t.Helper()
	raw := fmt.Appendf(nil, "blob %d\x00%s", len(text), text)
	name := fmt.Sprintf("%x", sha1.Sum(raw)) // git's name of it
	var packed bytes.Buffer
	z := zlib.NewWriter(&packed)
	_, err := z.Write(raw)
	if err = errors.Join(err, z.Close(), os.MkdirAll(filepath.Join(objects, name[:2]), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(objects, name[:2], name[2:]), packed.Bytes(), 0o444); err != nil {
		t.Fatal(err)
	}
}

// A large repository comes and goes forward within bounds of memory and time, and a
// look at it, with very many objects, stays far within its share.
func TestALargeRepository(t *testing.T) {
	t.Parallel()
	const piece = 8 << 20
	pieces := testkit.Count(2, 128) // a gigabyte
	s := gittest.Start(t)
	files := map[string]string{"compose.yml": "one"}
	for i := range pieces {
		raw := make([]byte, piece)
		if _, err := rand.Read(raw); err != nil {
			t.Fatal(err)
		}
		files[fmt.Sprintf("data/%03d", i)] = string(raw)
	}
	repo := s.Repo("large", files)
	clear(files)
	b := newBough(t)
	if err := os.WriteFile(b.script, runner.Script, 0o700); err != nil { // with its own limits
		t.Fatal(err)
	}
	b.memory = 512 << 10
	ask := branch(t, repo.URL, "main")
	from := time.Now()
	b.want(ask, "0")
	t.Logf("%d MiB came in %s", pieces*piece>>20, time.Since(from).Round(100*time.Millisecond))
	if info, err := os.Stat(b.path("props", "app", fmt.Sprintf("data/%03d", pieces-1))); err != nil || info.Size() != piece {
		t.Fatalf("%v %v", info, err)
	}
	for i := range testkit.Count(2_000, 100_000) { // as years of commits leave them
		loose(t, b.path("props", "app", ".git", "objects"), fmt.Sprint(i))
	}
	repo.Commit("main", map[string]string{"compose.yml": "two"})
	from = time.Now()
	b.want(ask, "0")
	t.Logf("it went forward in %s", time.Since(from).Round(100*time.Millisecond))
	from = time.Now()
	if look := b.look(); !strings.HasPrefix(look, unworked) {
		t.Errorf("a look: %q", look)
	}
	t.Logf("a look takes %s", time.Since(from).Round(10*time.Millisecond))
	if b.read("compose.yml") != "two" {
		t.Error(b.read("compose.yml"))
	}
}
