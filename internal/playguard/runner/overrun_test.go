package runner_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/testkit"
)

// Of an operation whose time was over nobody hears another end, whether its own limit
// killed what it waited for or it had to be made to end itself.
func TestTheEndOfAnOperationThatOverruns(t *testing.T) {
	t.Parallel()
	for _, shell := range shells {
		for _, c := range []struct{ name, hangs, says string }{
			{"its own limit", `timeout -k 1 "$seconds" sh -c 'trap "" TERM; while :; do sleep 1; done'; return`, "its time of 1 s was over"},
			{"its shell", `trap '' ALRM TERM; while :; do sleep 1; done`, "it was made to"},
		} {
			t.Run(shell[0]+" "+c.name, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				root, script := filepath.Join(dir, "fuse"), filepath.Join(dir, "runner")
				text := altered(t, string(runner.Script), map[string]string{
					"\ngrace=100\n": "\ngrace=3\n", "\npace=5 relief=40\n": "\npace=1 relief=1\n", "\ndo_destroy() {\n": "\ndo_destroy() {\n\t" + c.hangs + "\n",
				})
				if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
					t.Fatal(err)
				}
				run := func(args ...string) string {
					t.Helper()
					args = slices.Concat(shell[1:], []string{script, args[0], root, "inst1"}, args[1:])
					out, err := exec.CommandContext(t.Context(), shell[0], args...).CombinedOutput()
					if err != nil {
						t.Fatalf("%v: %s", err, out)
					}
					return string(out)
				}
				run("start", "1", "op1", "a--p1", "p1", "destroy", "1")
				var end string
				testkit.Eventually(t, 3*time.Minute, "it ends", func() bool {
					end = run("poll", "op1")
					return !strings.HasPrefix(end, "running\n")
				})
				if !strings.HasPrefix(end, "124\n") || !strings.Contains(end, c.says) {
					t.Errorf("it ended with %q, want 124 and %q", end, c.says)
				}
				testkit.Eventually(t, time.Minute, "nothing of it is left", func() bool { return len(processesOf(t, dir)) == 0 })
				if again := run("poll", "op1"); again != end {
					t.Errorf("then it had ended with %q", again)
				}
			})
		}
	}
}
