package runner_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/playguard/gittest"
)

// What was fetched is upstream's, under whatever name: a checkout with tags that are on
// no branch there, or not any more, is clean and goes forward.
func TestTagsOfUpstreamAreNoWork(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	repo := s.Repo("shop", map[string]string{"compose.yml": "one", "src/a": "1"})
	b := newBough(t)
	ask := branch(t, repo.URL, "main")
	b.want(ask, "0")
	for i := range 30 {
		repo.Commit("side", map[string]string{"src/a": fmt.Sprint("side ", i)})
		repo.Git("tag", "-m", "x", fmt.Sprint("v", i))
	}
	repo.Git("push", "-q", "--tags", "origin")
	repo.Git("notes", "add", "-m", "theirs")
	repo.Git("push", "-q", "origin", "refs/notes/commits")
	clean := func(what string) {
		t.Helper()
		if look := b.look(); !strings.HasPrefix(look, unworked) {
			t.Errorf("%s: %q", what, look)
		}
	}
	spoil(t, b, "set -e; git fetch -q --tags; git fetch -q origin refs/notes/commits:refs/notes/commits")
	clean("all that is upstream was fetched")
	repo.Git("checkout", "-q", "main")
	repo.Delete("side")
	spoil(t, b, "git fetch -q --prune")
	clean("their branch is gone")
	repo.Git("push", "-q", "origin", ":refs/tags/v29")
	spoil(t, b, "set -e; git fetch -q --prune; git tag again v28")
	clean("one of the tags is gone, and another has two names")
	spoil(t, b, "set -e; git pack-refs --all; git gc -q --prune=now")
	clean("it was packed")
	repo.Commit("main", map[string]string{"compose.yml": "two"})
	b.want(ask, "0")
	if b.read("compose.yml") != "two" {
		t.Error(b.read("compose.yml"))
	}
	spoil(t, b, "set -e; git checkout -q v20; echo mine >src/a; git commit -qam mine; git tag wip; git checkout -q main")
	if look := b.look(); !strings.Contains(look, "\nunpushed=1\n") {
		t.Errorf("one commit above what was fetched: %q", look)
	}
}

// A checkout that a person cloned has no logs of its tags: what is older than it was not
// made there.
func TestTagsOfAClone(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	repo := s.Repo("shop", map[string]string{"compose.yml": "one"})
	repo.Git("checkout", "-q", "--detach")
	old := exec.CommandContext(t.Context(), "git", "-C", repo.Work, "-c", "user.name=n", "-c", "user.email=n@example.org", "commit", "-q", "--allow-empty", "-m", "a release")
	old.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_COMMITTER_DATE=@1700000000 +0000")
	if out, err := old.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	repo.Git("tag", "v1")
	repo.Git("push", "-q", "origin", "v1")
	b := newBough(t)
	b.want(branch(t, repo.URL, "main"), "0")
	if err := os.RemoveAll(b.path("props", "app")); err != nil {
		t.Fatal(err)
	}
	gittest.Git(t, b.path("props"), "clone", "-q", repo.URL, filepath.Join(b.path("props"), "app"))
	if look := b.look(); !strings.HasPrefix(look, unworked) || gittest.Git(t, b.path("props", "app"), "tag") != "v1\n" {
		t.Errorf("%q", look)
	}
	spoil(t, b, "git commit -q --allow-empty -m mine; git tag wip; git reset -q --hard refs/remotes/origin/main")
	if look := b.look(); !strings.Contains(look, "\nunpushed=1\n") {
		t.Errorf("a tag of one's own: %q", look)
	}
	spoil(t, b, "echo >.git/logs/HEAD") // nobody knows how old it is
	if look := b.look(); !strings.Contains(look, "\nunpushed=2\n") {
		t.Errorf("without its log: %q", look)
	}
}
