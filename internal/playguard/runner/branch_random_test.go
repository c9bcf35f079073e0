package runner_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/playguard/gittest"
	"github.com/fusevm/fuse/internal/testkit"
)

// worked is git's own word for whether a checkout holds anything that is nowhere else.
const worked = `[ -n "$(git status --porcelain --untracked-files=all)" ] || [ -n "$(git log --format=%H HEAD --branches --tags --not --remotes)" ] ||
	[ -n "$(git stash list)" ] || [ -e .git/index.lock ] || git ls-files -v | grep -q '^[a-zS]'`

// deeds are what people do in a checkout.
var deeds = []string{
	`echo x >>src/a`, `git checkout -q -- .`, `git commit -qam w`, `rm -f new; git clean -qfd`, `echo y >new`,
	`git stash -q`, `git stash drop -q`, `git reset -q --hard refs/remotes/origin/main`, `git add -A`, `: >.git/index.lock`, `rm -f .git/index.lock`,
	`git checkout -q main`, `git checkout -q --detach`, `git tag wip`, `git tag -d wip`, `git fetch -q --tags`,
	`git update-index --assume-unchanged src/a`, `git update-index --no-assume-unchanged src/a`,
}

// Random things that people do, one after the other, between pushes: a checkout
// that holds anything of its own is as it was, and one that does not is where the
// branch is. A reclaim takes the latter alone.
func TestRandomWork(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	bin := t.TempDir() // of a daemon that has nothing
	if err := os.WriteFile(filepath.Join(bin, "docker"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(patient), "\nPATH=", "\nPATH="+bin+":", 1)
	n, states, moved, held := 0, 0, 0, 0
	least, deadline := testkit.Count(6, 200), time.Now().Add(time.Duration(testkit.Count(5, 120))*time.Second)
	rapid.Check(t, func(rt *rapid.T) {
		if states >= least && moved > 0 && held > 0 && time.Now().After(deadline) {
			return
		}
		n++
		repo := s.Repo(fmt.Sprintf("r%d", n), map[string]string{"compose.yml": "one", "src/a": "1"})
		repo.Git("tag", "upstream")
		repo.Git("push", "-q", "origin", "upstream")
		b := newBough(t)
		if err := os.WriteFile(b.script, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		ask := branch(t, repo.URL, "main")
		b.want(ask, "0")
		for range rapid.IntRange(1, 3).Draw(rt, "rounds") {
			for _, d := range rapid.SliceOfN(rapid.SampledFrom(deeds), 0, 4).Draw(rt, "deeds") {
				spoil(t, b, "{ "+d+"; } 2>/dev/null; true")
			}
			head := repo.Commit("main", map[string]string{"compose.yml": fmt.Sprint("next ", n, time.Now().UnixNano())})
			clean := !holds(t, b)
			if look := b.look(); clean != strings.HasPrefix(look, unworked) {
				rt.Fatalf("that it is clean is %v: %q", clean, look)
			}
			states++
			before := snapshot(t, b)
			reclaimed(rt, b, clean, before)
			status, text := b.run(ask)
			switch after := snapshot(t, b); {
			case !clean && (status != "80" || after != before):
				rt.Fatalf("status %s, %s\nwas\n%s\nis\n%s", status, text, before, after)
			case clean && status == "0":
				moved++
				if got := strings.TrimSpace(gittest.Git(t, b.path("props", "app"), "rev-parse", "main")); got != head {
					rt.Fatalf("at %s, the branch is at %s", got, head)
				}
			case clean && (status != "83" || after != before):
				rt.Fatalf("status %s, %s", status, text)
			}
			if !clean {
				held++
			}
		}
	})
	if t.Logf("%d runs, %d states: %d went forward, %d were held", n, states, moved, held); states < least || moved == 0 || held == 0 {
		t.Errorf("too few: at least %d states are wanted, and some of each", least)
	}
}

func holds(t *testing.T, b *bough) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", worked)
	cmd.Dir, cmd.Env = b.path("props", "app"), append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_OPTIONAL_LOCKS=0")
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return err == nil
}

// reclaimed has a copy of the host reclaim the playground.
func reclaimed(rt *rapid.T, b *bough, clean bool, before string) {
	c := *b
	c.root = filepath.Join(b.t.TempDir(), "fuse")
	if out, err := exec.CommandContext(b.t.Context(), "cp", "-a", b.root, c.root).CombinedOutput(); err != nil {
		rt.Fatalf("%v: %s", err, out)
	}
	status, text := c.operate("reclaim", nil)
	_, err := os.Stat(c.path())
	switch {
	case clean && (status != "0" || err == nil):
		rt.Fatalf("a reclaim ended with %s, and the directory is there: %v: %s", status, err == nil, text)
	case !clean && (status != "76" || err != nil || snapshot(c.t, &c) != before):
		rt.Fatalf("a reclaim of work ended with %s: %v: %s", status, err, text)
	}
}
