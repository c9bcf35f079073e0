package runner_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/testkit"
)

// An epoch counts from its claim on, also while an operation of an older one holds the
// lock, and also for a start of an older one that was under way.
func TestAClaimBesideAnOperation(t *testing.T) {
	t.Parallel()
	for _, shell := range shells {
		dir := t.TempDir()
		root, script := filepath.Join(dir, "fuse"), filepath.Join(dir, "runner")
		fences, ops := filepath.Join(root, "fence", "inst1"), filepath.Join(root, "ops", "inst1")
		if err := errors.Join(os.MkdirAll(fences, 0o700), os.WriteFile(script, runner.Script, 0o700)); err != nil {
			t.Fatal(err)
		}
		call := func(args ...string) *exec.Cmd {
			return exec.CommandContext(t.Context(), shell[0], slices.Concat(shell[1:], []string{script, args[0], root, "inst1"}, args[1:])...)
		}
		status := func(want int, args ...string) {
			t.Helper()
			cmd := call(args...)
			if out, err := cmd.CombinedOutput(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != want {
				t.Errorf("%s: %v: %v, want %d: %s", shell[0], args, err, want, out)
			}
		}
		start := func(epoch, op string) []string {
			return []string{"start", epoch, op, "a--p1", "p1", "files", "9"}
		}
		lock, err := os.Create(filepath.Join(fences, "lock"))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		status(0, "claim", "2")
		status(75, start("2", "op1")...) // an operation is at work
		if err := lock.Close(); err != nil {
			t.Fatal(err)
		}
		status(75, start("1", "op1")...)
		status(75, "claim", "1")

		// Its payload is still on the way when the next epoch comes.
		cmd := call(start("2", "op2")...)
		payload, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, time.Minute, "it waits for its payload", func() bool {
			_, err := os.Stat(filepath.Join(ops, "op2.new", "payload"))
			return err == nil
		})
		status(0, "claim", "3")
		_, err = io.WriteString(payload, "secret")
		if err := errors.Join(err, payload.Close()); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 75 {
			t.Errorf("%s: one that was overtaken on its way: %v", shell[0], err)
		}
		if left := names(t, ops); len(left) != 0 {
			t.Errorf("%s: it left %v", shell[0], left)
		}
		status(0, start("3", "op3")...)
		testkit.Eventually(t, time.Minute, "it ends", func() bool {
			_, err := os.Stat(filepath.Join(ops, "op3", "exit"))
			return err == nil
		})
	}
}
