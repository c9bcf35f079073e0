package runner_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/playguard/gittest"
	"github.com/fusevm/fuse/internal/playguard/sshx/sshdtest"
	"github.com/fusevm/fuse/internal/playguard/work"
)

// credential are the files by which git is given a token for a server.
func credential(t *testing.T, address, token string) []work.PackedFile {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return []work.PackedFile{
		{Name: "branch/credential", Data: []byte("username=token\npassword=" + token + "\n")},
		{Name: "branch/host", Data: []byte("protocol=" + u.Scheme + "\nhost=" + u.Host + "\n")},
	}
}

// A token is given to the repository's own server and to no other, and nothing of
// it is left on the host.
func TestTokens(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	repo := s.Repo("shop", map[string]string{"compose.yml": "one"})
	s.Token("s3cret-t0ken")
	b := newBough(t)
	if text := b.want(branch(t, repo.URL, "main"), "128"); strings.Contains(text, "s3cret") {
		t.Error(text)
	}
	if text := b.want(branch(t, repo.URL, "main", credential(t, repo.URL, "wrong-t0ken")...), "128"); strings.Contains(text, "wrong-t0ken") {
		t.Error("an error has the token in it: ", text)
	}
	elsewhere := ""
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		elsewhere += r.Header.Get("Authorization")
		w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
	}))
	defer other.Close()
	redirect := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.String(), http.StatusFound)
	}))
	defer redirect.Close()
	b.want(branch(t, redirect.URL+"/shop.git", "main", credential(t, redirect.URL, "s3cret-t0ken")...), "128")
	if elsewhere != "" {
		t.Error("another server was given a token:", elsewhere)
	}
	b.want(branch(t, repo.URL, "main", credential(t, repo.URL, "s3cret-t0ken")...), "0")
	err := filepath.WalkDir(b.root, func(p string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if raw, rerr := os.ReadFile(p); rerr == nil && strings.Contains(string(raw), "s3cret-t0ken") {
				t.Errorf("the token is left in %s", p)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A deploy key is used alone, and a server with another key than its own gets nothing.
func TestDeployKeys(t *testing.T) {
	t.Parallel()
	g := gittest.Start(t)
	repo := g.Repo("shop", map[string]string{"compose.yml": "one"})
	s := sshdtest.Start(t, sshdtest.Options{})
	address := "ssh://" + s.User + "@" + s.Address + repo.Bare
	host, port, _ := strings.Cut(s.Address, ":")
	known := func(key string) []work.PackedFile {
		return []work.PackedFile{{Name: "branch/key", Data: append([]byte(strings.TrimSpace(string(s.Key))), '\n')}, {Name: "branch/known_hosts", Data: []byte("[" + host + "]:" + port + " " + key + "\n")}}
	}
	b := newBough(t)
	b.want(branch(t, address, "main", known(s.HostKey)...), "0")
	if b.read("compose.yml") != "one" {
		t.Error(b.read("compose.yml"))
	}
	another := newBough(t)
	if text := another.want(branch(t, address, "main", known("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ8yX2Y2cHk0bW1vY2ttb2NrbW9ja21vY2ttb2NrbW9j")...), "128"); !strings.Contains(text, "Host key verification failed") {
		t.Error(text)
	}
}

// Submodules are checkouts of their own at the commit that the branch names; work
// in one is work in the whole, and one that is dropped goes.
func TestSubmodules(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	lib := s.Repo("lib", map[string]string{"l": "1"})
	repo := s.Repo("shop", map[string]string{"compose.yml": "one"})
	repo.Git("submodule", "--quiet", "add", "../lib.git", "third/lib")
	repo.Commit("main", map[string]string{"compose.yml": "two"})
	b := newBough(t)
	b.want(branch(t, repo.URL, "main"), "0")
	if !strings.HasPrefix(b.look(), unworked) {
		t.Errorf("one that was not fetched: %q", b.look())
	}
	ask := branch(t, repo.URL, "main", work.PackedFile{Name: "branch/submodules"})
	b.want(ask, "0")
	if b.read("third/lib/l") != "1" || !strings.HasPrefix(b.look(), unworked) {
		t.Fatalf("%q %q", b.read("third/lib/l"), b.look())
	}
	lib.Commit("main", map[string]string{"l": "2"})
	repo.Git("-C", "third/lib", "pull", "-q", "origin", "main")
	repo.Git("add", "third/lib")
	repo.Commit("main", map[string]string{"compose.yml": "three"})
	spoil(t, b, "cd third/lib && git checkout -q --detach && echo mine >l && git commit -qam mine")
	b.want(ask, "80")
	spoil(t, b, "cd third/lib && git reset -q --hard refs/remotes/origin/fuse")
	b.want(ask, "0")
	if b.read("third/lib/l") != "2" || !strings.HasPrefix(b.look(), unworked) {
		t.Errorf("%q %q", b.read("third/lib/l"), b.look())
	}
	repo.Git("rm", "-q", "-f", "third/lib")
	repo.Commit("main", map[string]string{"compose.yml": "four"})
	b.want(ask, "0")
	if _, err := os.Stat(b.path("props", "app", "third", "lib")); err == nil || !strings.HasPrefix(b.look(), unworked) {
		t.Errorf("what was dropped is there: %q", b.look())
	}
}

// Nothing that a repository or its checkout brings along is run.
func TestNothingIsRun(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	repo := s.Repo("shop", map[string]string{"compose.yml": "one", ".gitattributes": "* filter=x diff=x merge=x\n"})
	b := newBough(t)
	ask := branch(t, repo.URL, "main")
	b.want(ask, "0")
	ran := filepath.Join(b.root, "ran")
	spoil(t, b, `for h in post-checkout post-merge reference-transaction pre-auto-gc post-index-change; do printf '#!/bin/sh\ntouch `+ran+`\n' >.git/hooks-$h; mkdir -p .git/hooks; cp .git/hooks-$h .git/hooks/$h; chmod +x .git/hooks/$h; rm .git/hooks-$h; done
		git config filter.x.smudge 'touch `+ran+`; cat'; git config filter.x.clean 'touch `+ran+`; cat'; git config core.fsmonitor 'touch `+ran+`'
		git config core.sshCommand 'touch `+ran+`'; git config credential.helper '!touch `+ran+`'; git config remote.origin.url 'ext::touch `+ran+`'; git config core.hooksPath .git/hooks
		git config url.ext::x.insteadOf http; git config protocol.ext.allow always`)
	repo.Commit("main", map[string]string{"compose.yml": "two", "evil": "x"})
	b.want(ask, "0")
	if b.read("compose.yml") != "two" {
		t.Error(b.read("compose.yml"))
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a program of the checkout was run")
	}
	for _, bad := range []string{"ext::touch " + ran, "file://" + repo.Bare, "/" + repo.Bare, "--upload-pack=touch", "git://127.0.0.1/x"} {
		b.want(branch(t, bad, "main"), "64")
	}
	for _, bad := range []string{"--force", "a..b", "", "x y", "@{u}"} {
		b.want(branch(t, repo.URL, bad), "64")
	}
}
