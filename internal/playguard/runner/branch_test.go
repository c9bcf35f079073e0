package runner_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/gittest"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/testkit"
)

// bough is a host without Docker on which branches are checked out.
type bough struct {
	t      testing.TB
	script string
	root   string
	n      int
	env    []string
	memory int // KiB that each process may have; 0: as much as it likes
}

const shopDir = "playgrounds/shop--p1"

func newBough(t testing.TB) *bough {
	t.Helper()
	dir := t.TempDir()
	b := &bough{t: t, script: filepath.Join(dir, "runner"), root: filepath.Join(dir, "opt", "fuse")}
	if err := os.WriteFile(b.script, patient, 0o700); err != nil {
		t.Fatal(err)
	}
	return b
}

// composeIs is what hosts here remember of their Compose once they were asked: v1
// takes most of a second to say.
var composeIs struct {
	sync.Mutex
	said []byte
}

// remembers lets the host know its Compose before a look, or what the look found be
// known to the next host.
func (b *bough) remembers() {
	b.t.Helper()
	composeIs.Lock()
	defer composeIs.Unlock()
	file := filepath.Join(b.root, "installations", "inst1.compose")
	if raw, err := os.ReadFile(file); err == nil {
		composeIs.said = raw
		return
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		b.t.Fatal(err)
	}
	if composeIs.said != nil {
		if err := os.WriteFile(file, composeIs.said, 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bough) path(parts ...string) string {
	return filepath.Join(append([]string{b.root, shopDir}, parts...)...)
}

// branch are the files of a request.
func branch(t testing.TB, url, ref string, more ...work.PackedFile) []byte {
	t.Helper()
	project, err := model.NewProject("shop", "p1")
	if err != nil {
		t.Fatal(err)
	}
	marker, err := model.Marker{Kind: model.KindPlayground, Installation: "inst1", Marquee: "mq1", Playground: "p1", Project: project, Epoch: 1}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	files := []work.PackedFile{
		{Name: ".fuse/owner.json", Data: marker},
		{Name: "branch/name", Data: []byte("app")}, {Name: "branch/url", Data: []byte(url)}, {Name: "branch/ref", Data: []byte(ref)},
		{Name: "branch/depth", Data: []byte("4")}, {Name: "branch/plain", Data: []byte("yes")},
	}
	raw, err := work.Pack(append(files, more...))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// do runs the script here.
func (b *bough) do(stdin []byte, args ...string) (out, errText string, status int) {
	b.t.Helper()
	line := []string{b.script, args[0], b.root, "inst1"}
	if b.memory > 0 {
		line = append([]string{"-c", fmt.Sprintf(`ulimit -v %d; exec sh "$0" "$@"`, b.memory)}, line...)
	}
	cmd := exec.CommandContext(b.t.Context(), "sh", append(line, args[1:]...)...)
	cmd.Stdin, cmd.Env = bytes.NewReader(stdin), append(os.Environ(), b.env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	raw, err := cmd.Output()
	if err != nil && cmd.ProcessState == nil {
		b.t.Fatal(err)
	}
	return string(raw), stderr.String(), cmd.ProcessState.ExitCode()
}

// run starts a branch operation and waits for its end.
func (b *bough) run(payload []byte) (status, text string) {
	b.t.Helper()
	return b.operate("branch", payload)
}

func (b *bough) operate(kind string, payload []byte) (status, text string) {
	b.t.Helper()
	b.n++
	op := fmt.Sprintf("op%d", b.n)
	if _, text, code := b.do(payload, "start", "1", op, "shop--p1", "p1", kind, "300"); code != 0 {
		b.t.Fatalf("it did not start: %d %s", code, text)
	}
	testkit.Eventually(b.t, 6*time.Minute, "the operation ends", func() bool {
		out, _, _ := b.do(nil, "poll", op)
		status, text, _ = strings.Cut(out, "\n")
		return status != "running"
	})
	return status, text
}

func (b *bough) want(payload []byte, status string) string {
	b.t.Helper()
	got, text := b.run(payload)
	if got != status {
		b.t.Errorf("status %s, want %s: %s", got, status, text)
	}
	return text
}

func (b *bough) read(name string) string {
	raw, _ := os.ReadFile(b.path("props", "app", name)) // what is not there is empty
	return string(raw)
}

// look is what a look says of the checkout.
func (b *bough) look() string {
	b.t.Helper()
	b.remembers()
	git := ""
	testkit.Eventually(b.t, 3*time.Minute, "a look comes to the checkout in time", func() (there bool) {
		out, _, _ := b.do(nil, "observe", "0123456789abcdef0123456789abcdef")
		_, git, there = strings.Cut(out, "PART git:shop--p1:app ")
		return there
	})
	b.remembers()
	_, git, _ = strings.Cut(git, "\n")
	git, _, _ = strings.Cut(git, "PART")
	return git
}

const unworked = "repository=yes\nhead=yes\nbusy=\nchanged=0\nunpushed=0\nstashes=0\n"

// A branch is checked out, and goes forward with its server; what is rewritten or
// gone there leaves the checkout as it is.
func TestBranch(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	repo := s.Repo("shop", map[string]string{"compose.yml": "one", "src/a": "1"})
	b := newBough(t)
	ask := branch(t, repo.URL, "main")
	b.want(ask, "0")
	if b.read("compose.yml") != "one" || !strings.HasPrefix(b.look(), unworked) {
		t.Fatalf("%q %q", b.read("compose.yml"), b.look())
	}
	for i := range 8 { // more than the depth
		repo.Commit("main", map[string]string{"src/a": fmt.Sprint(i + 2)})
	}
	head := repo.Commit("main", map[string]string{"compose.yml": "two", "src/b": "new"})
	if out, text, code := b.do(ask, "remote"); code != 0 || strings.TrimSpace(out) != head {
		t.Errorf("%q %s %d", out, text, code)
	}
	b.want(ask, "0")
	if b.read("compose.yml") != "two" || b.read("src/a") != "9" || b.read("src/b") != "new" || !strings.HasPrefix(b.look(), unworked) {
		t.Errorf("%q %q %q %q", b.read("compose.yml"), b.read("src/a"), b.read("src/b"), b.look())
	}
	out, _, _ := b.do(nil, "tree", "shop--p1", "app", "compose.yml", "src")
	if !strings.HasPrefix(out, head+"\n100644 blob ") || !strings.Contains(out, "\x00040000 tree ") || !strings.HasSuffix(out, "\tsrc\x00") {
		t.Errorf("%q", out)
	}
	id := strings.Fields(out)[3]
	if out, _, _ := b.do([]byte(id+"\n"), "blobs", "shop--p1", "app", "4096"); out != id+" blob 3\ntwo\n" {
		t.Errorf("%q", out)
	}

	repo.Git("reset", "-q", "--hard", "HEAD~3")
	forced := repo.Commit("main", map[string]string{"compose.yml": "rewritten"})
	b.want(ask, "82")
	if b.read("compose.yml") != "two" || !strings.HasPrefix(b.look(), unworked) {
		t.Errorf("%q %q", b.read("compose.yml"), b.look())
	}
	b.want(branch(t, repo.URL, "main", work.PackedFile{Name: "branch/force"}), "0")
	if b.read("compose.yml") != "rewritten" || !strings.HasPrefix(b.look(), unworked) {
		t.Errorf("%q %q", b.read("compose.yml"), b.look())
	}
	if kept := gittest.Git(t, b.path("props", "app"), "for-each-ref", "--format=%(objectname)", "refs/fuse"); !strings.Contains(kept, head) || !strings.Contains(kept, forced) {
		t.Errorf("what was left behind has no name: %s", kept)
	}
	repo.Delete("main")
	b.want(ask, "81")
	if b.read("compose.yml") != "rewritten" {
		t.Error("a branch that is gone took the checkout along")
	}
	if _, _, code := b.do(ask, "remote"); code != runner.StatusGone {
		t.Errorf("status %d", code)
	}
	b.want(branch(t, repo.URL, "never"), "83")
}

// spoils are ways in which a checkout comes to hold work of its own.
var spoils = map[string]string{
	"modified":         `echo mine >>compose.yml`,
	"staged":           `echo mine >>compose.yml; git add compose.yml`,
	"untracked":        `echo mine >new`,
	"removed":          `rm compose.yml`,
	"committed":        `echo mine >>src/a; git commit -qam mine`,
	"detached commit":  `git checkout -q --detach; echo mine >>src/a; git commit -qam mine`,
	"on a branch":      `git checkout -q -b other; echo mine >>src/a; git commit -qam mine`,
	"behind a branch":  `git checkout -q -b other; echo mine >>src/a; git commit -qam mine; git checkout -q main`,
	"stashed":          `echo mine >>src/a; git stash -q`,
	"merging":          `git checkout -q -b other; echo x >src/a; git commit -qam x; git checkout -q main; echo y >src/a; git commit -qam y; git merge -q other || true`,
	"rebasing":         `git checkout -q -b other; echo x >src/a; git commit -qam x; git checkout -q main; echo y >src/a; git commit -qam y; git rebase -q other || true`,
	"locked":           `: >.git/index.lock`,
	"bisecting":        `git bisect start -q 2>/dev/null || git bisect start`,
	"no repository":    `rm -rf .git`,
	"repository moved": `mv .git ../moved; ln -s ../moved .git`,
	"head unborn":      `git checkout -q --orphan nothing`,
	"index broken":     `echo junk >.git/index`,
	"exec bit":         `chmod +x compose.yml`,
	"assumed":          `git update-index --assume-unchanged compose.yml; echo mine >>compose.yml`,
	"skipped":          `git update-index --skip-worktree src/a; echo mine >>src/a`,
	"both":             `git update-index --skip-worktree --assume-unchanged src/a; echo mine >>src/a`,
	"stash unlogged":   `echo mine >>src/a; git stash -q; rm .git/logs/refs/stash`,
	"stash packed":     `echo mine >>src/a; git stash -q; git pack-refs --all; rm .git/logs/refs/stash`,
	"tagged":           `echo mine >>src/a; git commit -qam mine; git tag wip; git reset -q --hard refs/remotes/origin/main`,
	"annotated":        `echo mine >>src/a; git commit -qam mine; git tag -m wip wip; git reset -q --hard refs/remotes/origin/main; git pack-refs --all`,
	"tagged stash":     `echo mine >>src/a; git stash -q; git tag kept stash@{0}; git stash drop -q`,
	"tagged over":      `git fetch -q --tags; echo mine >>src/a; git commit -qam mine; git tag -f upstream; git reset -q --hard refs/remotes/origin/main`,
	"noted":            `git notes add -m mine`,
	"worktree":         `git worktree add -q --detach ../../aside; cd ../../aside; echo mine >>src/a; git commit -qam mine`,
	"branch cut":       `git checkout -q -b other; echo mine >>src/a; git commit -qam mine; git checkout -q main; : >.git/refs/heads/other`,
}

// Whatever a person has done in a checkout, nothing of it is lost: the branch
// does not go forward, and no byte changes.
func TestWorkIsNeverTouched(t *testing.T) {
	t.Parallel()
	s := gittest.Start(t)
	for name, line := range spoils {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo := s.Repo(strings.ReplaceAll(name, " ", "-"), map[string]string{"compose.yml": "one", "src/a": "1"})
			repo.Git("tag", "upstream")
			repo.Git("push", "-q", "origin", "upstream")
			b := newBough(t)
			ask := branch(t, repo.URL, "main")
			b.want(ask, "0")
			spoil(t, b, line)
			repo.Commit("main", map[string]string{"compose.yml": "two", "new": "theirs"})
			before := snapshot(t, b)
			if strings.HasPrefix(b.look(), unworked) {
				t.Error("the look says that nothing is there")
			}
			if status, text := b.run(ask); status != "80" {
				t.Errorf("status %s: %s", status, text)
			}
			if after := snapshot(t, b); after != before {
				t.Errorf("it changed:\n%s\nwas\n%s", after, before)
			}
		})
	}
}

func spoil(t testing.TB, b *bough, line string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Dir = b.path("props", "app")
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=m", "GIT_AUTHOR_EMAIL=m@example.org", "GIT_COMMITTER_NAME=m", "GIT_COMMITTER_EMAIL=m@example.org")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// snapshot is every file of the working copy, and every name that git has.
func snapshot(t testing.TB, b *bough) string {
	t.Helper()
	var out strings.Builder
	root := b.path("props", "app")
	err := filepath.WalkDir(root, func(p string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		if strings.HasPrefix(rel, ".git/") && !strings.HasPrefix(rel, ".git/refs/heads") && !strings.HasPrefix(rel, ".git/refs/stash") && rel != ".git/HEAD" && rel != ".git/index.lock" {
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "%s %s", rel, info.Mode())
		if info.Mode().IsRegular() {
			raw, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&out, " %q", raw)
		}
		out.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}
