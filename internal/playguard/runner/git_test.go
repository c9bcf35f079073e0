package runner_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

// A look at a checkout runs nothing that its configuration names: containers
// can write that.
func TestCheckoutsRunNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := filepath.Join(dir, "opt", "fuse")
	work := filepath.Join(root, "playgrounds", "shop--p1", "props", "api")
	// An enrolled host remembers what Compose it has: v1 takes long to say.
	if err := errors.Join(os.MkdirAll(work, 0o755), os.MkdirAll(filepath.Join(root, "installations"), 0o700)); err != nil {
		t.Fatal(err)
	}
	sh := func(line string) {
		t.Helper()
		c := exec.Command("sh", "-ec", line)
		c.Dir, c.Env = work, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "D="+dir)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	look := func(want string) {
		t.Helper()
		for _, shell := range shells {
			git := ""
			testkit.Eventually(t, 3*time.Minute, "a look comes to the checkout in time", func() (there bool) {
				out, _ := local(t, shell, "observe", root, "inst1", "0123456789abcdef0123456789abcdef")
				_, git, there = strings.Cut(out, "PART git:shop--p1:api ")
				return there
			})
			if _, git, _ = strings.Cut(git, "\n"); !strings.HasPrefix(strings.ReplaceAll(git, "\n", " "), want) {
				t.Errorf("%s: %.200q, want %q", shell[0], git, want)
			}
		}
	}
	sh(`git init -q .; git config user.email a@b; git config user.name n; echo a >f; echo '* filter=x' >.gitattributes
		git add .; git commit -qm x; git clone -q --bare . "$D/r"; git remote add origin "$D/r"; git fetch -q`)
	look("repository=yes head=yes busy= changed=0 unpushed=0 stashes=0 ")
	sh(`echo b >>f; git stash -q; echo c >g; git add g; git commit -qm y
		git config filter.x.clean "touch $D/ran; cat"; git config core.fsmonitor "touch $D/ran"; git config log.showSignature true; git config gpg.program "$D/ran"
		echo d >>f; echo e >h`)
	look("repository=yes head=yes busy= changed=2 unpushed=1 stashes=1 ")
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("a program of the checkout's configuration was run")
	}
	sh(`git update-index --add --cacheinfo "160000,$(git rev-parse HEAD),sub"`)
	look("repository=yes head=yes busy=staged-submodule changed=4 ") // it counts as staged, and as removed
	sh(`git init -q sub; cd sub; echo a >f; echo '* filter=x' >.gitattributes; git config filter.x.clean "touch $D/ran; cat"; git config core.fsmonitor "touch $D/ran"; rm -f "$D/ran"`)
	look("repository=yes head=yes busy=submodule ")
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("a program of a submodule's configuration was run")
	}
	sh(`mv .git "$D/elsewhere"; ln -s "$D/elsewhere" .git`)
	look("repository=no ")
}
