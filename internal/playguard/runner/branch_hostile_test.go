package runner_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/playguard/gittest"
	"github.com/fusevm/fuse/internal/playguard/work"
)

// A commit that puts a link where the directory of a submodule was has nothing
// removed beyond that link.
func TestDroppedSubmoduleBehindALink(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	s.Repo("lib", map[string]string{"l": "1"})
	for _, submodules := range []bool{false, true} {
		repo := s.Repo(fmt.Sprint("shop-", submodules), map[string]string{"compose.yml": "one"})
		repo.Git("submodule", "--quiet", "add", "../lib.git", "third/lib")
		repo.Commit("main", map[string]string{"compose.yml": "two"})
		b := newBough(t)
		var more []work.PackedFile
		if submodules {
			more = append(more, work.PackedFile{Name: "branch/submodules"})
		}
		ask := branch(t, repo.URL, "main", more...)
		b.want(ask, "0")
		victim := filepath.Join(t.TempDir(), "host")
		if err := os.MkdirAll(filepath.Join(victim, "lib"), 0o755); err != nil {
			t.Fatal(err)
		}
		repo.Git("rm", "-q", "-f", "third/lib")
		if err := os.RemoveAll(filepath.Join(repo.Work, "third")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(victim, filepath.Join(repo.Work, "third")); err != nil {
			t.Fatal(err)
		}
		repo.Git("add", "third")
		repo.Commit("main", map[string]string{"compose.yml": "three"})
		b.run(ask)
		if _, err := os.Stat(filepath.Join(victim, "lib")); err != nil {
			t.Error("what lies behind a link was removed:", err)
		}
	}
}

// Containers write in a checkout: a link in its repository has nothing written
// where it leads.
func TestLinksInARepository(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	for name, line := range map[string]string{
		"log":     `mkdir -p .git/logs/refs/heads; rm -f .git/logs/refs/heads/main; ln -s "$V/there" .git/logs/refs/heads/main`,
		"names":   `ln -s "$V" .git/refs/fuse`,
		"shallow": `rm -f .git/shallow; ln -s "$V/new" .git/shallow`,
		"objects": `mkdir -p .git/objects/pack; mv .git/objects/pack "$V/pack"; ln -s "$V/pack" .git/objects/pack`,
		"index":   `mv .git/index "$V/index"; ln -s "$V/index" .git/index`,
		"packed":  `git pack-refs --all; mv .git/packed-refs "$V/packed"; ln -s "$V/packed" .git/packed-refs`,
		"lent":    `mkdir -p "$V/objects/pack"; mkdir -p .git/objects/info; echo "$V/objects" >.git/objects/info/alternates`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo := s.Repo(name, map[string]string{"compose.yml": "one"})
			b := newBough(t)
			ask := branch(t, repo.URL, "main")
			b.want(ask, "0")
			v := t.TempDir()
			if err := os.WriteFile(filepath.Join(v, "there"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			spoil(t, b, "V='"+v+"'; "+line)
			before := list(t, v)
			repo.Commit("main", map[string]string{"compose.yml": "two"})
			if status, text := b.run(ask); status == "0" {
				t.Errorf("status %s %s", status, text)
			}
			if after := list(t, v); after != before {
				t.Errorf("it wrote outside:\n%s\nwas\n%s", after, before)
			}
		})
	}
}

// list is what lies in a directory, with its contents.
func list(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	if err := filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			raw, rerr := os.ReadFile(p)
			out.WriteString(p + " " + string(raw) + "\n")
			return rerr
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// Work in a submodule counts, whatever its path is called.
func TestWorkInSubmodulesOfOddNames(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	s.Repo("lib", map[string]string{"l": "1"})
	for i, name := range []string{"plain", "with space", "end ", "täglich", "tab\tin", "quote\"in", "back\\slash", "new\nline"} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			repo := s.Repo(fmt.Sprint("shop-", i), map[string]string{"compose.yml": "one"})
			lib := gittest.Git(t, repo.Work, "ls-remote", strings.Replace(repo.URL, filepath.Base(repo.URL), "lib.git", 1), "refs/heads/main")
			commit := strings.Fields(lib)[0]
			repo.Git("update-index", "--add", "--cacheinfo", "160000,"+commit+","+name)
			repo.Git("commit", "-qm", "a submodule")
			repo.Git("push", "-q", "origin", "main")
			b := newBough(t)
			b.want(branch(t, repo.URL, "main"), "0")
			if !strings.HasPrefix(b.look(), unworked) && !strings.Contains(name, "\n") { // a name of several lines is never looked at
				t.Fatalf("one that was never fetched: %q", b.look())
			}
			at := b.path("props", "app", name)
			gittest.Git(t, b.path("props", "app"), "clone", "-q", strings.Replace(repo.URL, filepath.Base(repo.URL), "lib.git", 1), at)
			if err := os.WriteFile(filepath.Join(at, "mine"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			if look := b.look(); strings.HasPrefix(look, unworked) {
				t.Errorf("a look sees no work in it: %q", look)
			}
		})
	}
}

// What is put in the place of a submodule counts as well, and so does another one
// that is staged: git tells of neither while it looks into none.
func TestWorkInThePlaceOfSubmodules(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	s.Repo("lib", map[string]string{"l": "1"})
	for name, deed := range map[string]string{
		"a file":         `rmdir lib; echo mine >lib`,
		"a link":         `rmdir lib; ln -s nowhere lib`,
		"another commit": `git update-index --cacheinfo 160000,$(git rev-parse HEAD),lib`,
		"one more":       `git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),more`,
		"one less":       `git rm -q --cached lib`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo := s.Repo(strings.ReplaceAll(name, " ", "-"), map[string]string{"compose.yml": "one"})
			repo.Git("submodule", "--quiet", "add", "../lib.git", "lib")
			repo.Commit("main", map[string]string{"compose.yml": "two"})
			b := newBough(t)
			ask := branch(t, repo.URL, "main")
			b.want(ask, "0")
			if look := b.look(); !strings.HasPrefix(look, unworked) {
				t.Fatalf("before: %q", look)
			}
			spoil(t, b, deed)
			before := snapshot(t, b)
			if look := b.look(); strings.HasPrefix(look, unworked) {
				t.Errorf("a look sees no work: %q", look)
			}
			repo.Git("rm", "-q", "-f", "lib")
			repo.Commit("main", map[string]string{"compose.yml": "three"})
			b.want(ask, "80")
			if after := snapshot(t, b); after != before {
				t.Errorf("it changed:\n%s\nwas\n%s", after, before)
			}
		})
	}
}

// What git ignores is a person's all the same: a branch that brings a file to
// where one lies does not go forward.
func TestIgnoredFilesAreKept(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	for name, c := range map[string]struct{ deed, brings string }{
		"a file":                 {`echo mine >.env`, ".env"},
		"a file in its way":      {`echo mine >out`, "out/a"},
		"a directory in its way": {`mkdir out; echo mine >out/a`, "out"},
		"a kept one":             {`mkdir src/out; echo mine >src/out/a`, "src/b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo := s.Repo(strings.ReplaceAll(name, " ", "-"), map[string]string{"compose.yml": "one", "src/a": "1", ".gitignore": ".env\nout\n"})
			b := newBough(t)
			ask := branch(t, repo.URL, "main")
			b.want(ask, "0")
			spoil(t, b, c.deed)
			repo.Commit("main", map[string]string{"compose.yml": "two", c.brings: "theirs"})
			want := "80"
			if name == "a kept one" {
				want = "0"
			}
			before := snapshot(t, b)
			b.want(ask, want)
			if after := snapshot(t, b); want == "80" && after != before {
				t.Errorf("it changed:\n%s\nwas\n%s", after, before)
			}
			spoil(t, b, "[ \"$(cat .env out src/out/a out/a 2>/dev/null)\" = mine ]")
		})
	}
}

// A disk that has no room for what changes leaves the checkout as it was, clean,
// so that it goes forward once there is room.
func TestNoRoomToGoForward(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	repo := s.Repo("shop", map[string]string{"compose.yml": "one"})
	b := newBough(t)
	if err := os.MkdirAll(b.root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", b.root, "tmpfs", 0, "size=72m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(b.root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	ask := branch(t, repo.URL, "main")
	b.want(ask, "0")
	// It is small on its way, and large where it lies.
	repo.Commit("main", map[string]string{"compose.yml": "two", "a": strings.Repeat("a", 58<<20)})
	before := snapshot(t, b)
	if text := b.want(ask, "84"); !strings.Contains(text, "no space left on device: the branch needs") {
		t.Error(text)
	}
	if after := snapshot(t, b); after != before || !strings.HasPrefix(b.look(), unworked) {
		t.Errorf("it is changed, or counts as work: %s", b.look())
	}
	if err := unix.Mount("none", b.root, "tmpfs", unix.MS_REMOUNT, "size=200m"); err != nil {
		t.Fatal(err)
	}
	b.want(ask, "0")
	if b.read("compose.yml") != "two" || !strings.HasPrefix(b.look(), unworked) {
		t.Errorf("%q %s", b.read("compose.yml"), b.look())
	}
}

// A directory that a container made and we may not read may have anything in it: the look
// says nothing, and what goes by it keeps away.
func TestWhatCannotBeReadIsNotClean(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	repo := s.Repo("shop", map[string]string{"compose.yml": "one"})
	b := newBough(t)
	b.want(branch(t, repo.URL, "main"), "0")
	give := exec.CommandContext(t.Context(), "sh", "-ec", `chmod 755 "$0" "${0%/*}" "${0%/*}/.."; chown -R 65534 "${1%/*}"`, b.script, b.root)
	if out, err := give.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	look := func(name string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "setpriv", "--reuid", "65534", "--clear-groups", "sh", "-c",
			`mkdir "$2" && cd / && sh "$0" directory "$1" inst1 "$2" shop--p1; cat "$2"/*.part`, b.script, b.root, filepath.Join(b.root, name))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		_, git, _ := strings.Cut(string(out), "PART git:shop--p1:app ")
		return git
	}
	if got := look("first"); !strings.Contains(got, "\n"+unworked) {
		t.Fatalf("%q", got)
	}
	spoil(t, b, "mkdir -m 700 data; echo mine >data/f")
	if got := look("second"); strings.HasPrefix(got, "0 ") || strings.Contains(got, "changed=") || !strings.Contains(got, "could not open directory 'data/'") {
		t.Errorf("%q", got)
	}
}
