package runner_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/testkit"
)

// hosted is the script on a host whose docker does what the text says.
func hosted(t *testing.T, docker string) (script, root, tmp string) {
	t.Helper()
	dir := t.TempDir()
	script, root, tmp = filepath.Join(dir, "runner"), filepath.Join(dir, "fuse"), filepath.Join(dir, "tmp")
	text := altered(t, string(runner.Script), map[string]string{"\nPATH=": "\nPATH=" + dir + ":"})
	err := errors.Join(os.Mkdir(tmp, 0o700), os.WriteFile(script, []byte(text), 0o700), os.WriteFile(filepath.Join(dir, "docker"), []byte("#!/bin/sh\n"+docker), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	return script, root, tmp
}

// What is open for days is not tidied away: who reads logs goes on, and can be told
// to end.
func TestReapLeavesOpenStreams(t *testing.T) {
	t.Parallel()
	for _, shell := range shells {
		script, root, tmp := hosted(t, "")
		streams := filepath.Join(root, "streams", "inst1")
		run := func(verb string, args ...string) *exec.Cmd {
			cmd := exec.CommandContext(t.Context(), shell[0], append(append(slices.Clone(shell[1:]), script, verb, root, "inst1"), args...)...)
			cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
			return cmd
		}
		follow := run("logs", "open", "p1", "1", "10", "0", "0")
		follow.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
		if err := follow.Start(); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, 2*time.Minute, "it follows", func() bool {
			_, err := os.Stat(filepath.Join(streams, "open.members"))
			return err == nil
		})
		old := time.Now().Add(-9 * 24 * time.Hour)
		scratch, err := filepath.Glob(filepath.Join(tmp, "fuse-runner.*"))
		if err != nil || len(scratch) != 1 {
			t.Fatalf("%s: %v %v", shell[0], scratch, err)
		}
		aged(t, time.Since(old), filepath.Join(streams, "cut.env"), filepath.Join(streams, "bare.members"), filepath.Join(root, "ops", "inst1")+"/")
		if err := os.WriteFile(filepath.Join(streams, "cut.pid"), fmt.Appendf(nil, "%d 1 another\n", follow.Process.Pid), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{scratch[0], filepath.Join(streams, "open.pid"), filepath.Join(streams, "cut.pid")} {
			if err := os.Chtimes(path, old, old); err != nil {
				t.Fatal(err)
			}
		}
		testkit.Eventually(t, 2*time.Minute, "its directory is seen to be in use", func() bool {
			info, err := os.Stat(scratch[0])
			return err == nil && time.Since(info.ModTime()) < time.Hour
		})
		if out, err := run("reap", "1").CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", shell[0], err, out)
		}
		if got := names(t, streams); !slices.Equal(got, []string{"open.members", "open.pid"}) {
			t.Errorf("%s: %v is left of streams", shell[0], got)
		}
		if got := names(t, tmp); len(got) != 1 {
			t.Errorf("%s: %v", shell[0], got)
		}
		if out, err := run("hangup", "open").CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", shell[0], err, out)
		}
		end := time.AfterFunc(2*time.Minute, func() { _ = unix.Kill(-follow.Process.Pid, unix.SIGKILL) })
		if _ = follow.Wait(); !end.Stop() {
			t.Errorf("%s: it was told to end, and goes on", shell[0])
		}
		if got := append(names(t, streams), names(t, tmp)...); len(got) != 0 {
			t.Errorf("%s: %v is left once it was told to end", shell[0], got)
		}
	}
}

// The environment of a command that has no container to run in may hold secrets, and
// does not stay.
func TestACommandWithoutAContainerLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, shell := range shells {
		script, root, _ := hosted(t, "")
		streams := filepath.Join(root, "streams", "inst1")
		aged(t, 0, filepath.Join(streams, "one.env"), filepath.Join(streams, "other.env"))
		cmd := exec.CommandContext(t.Context(), shell[0], append(slices.Clone(shell[1:]), script, "execute", root, "inst1", "one", "p1", "web", "0", "", "", "true")...)
		if out, err := cmd.CombinedOutput(); err == nil || cmd.ProcessState.ExitCode() != 66 {
			t.Errorf("%s: %v: %s", shell[0], err, out)
		}
		if got := names(t, streams); !slices.Equal(got, []string{"other.env"}) {
			t.Errorf("%s: %v is left", shell[0], got)
		}
	}
}
