package runner_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/testkit"
)

// altered is a script in which each of these pieces, which it has, is another.
func altered(t testing.TB, script string, changes map[string]string) string {
	t.Helper()
	for from, to := range changes {
		if !strings.Contains(script, from) {
			t.Fatalf("there is no %q", from)
		}
		script = strings.Replace(script, from, to, 1)
	}
	return script
}

// An operation as a whole ends, whatever hangs in it and does not listen, and the next
// one begins, also while the host's clock is set. Nothing of it is left, nor of one
// that ended in time.
func TestAnOperationEnds(t *testing.T) {
	t.Parallel()
	for _, shell := range shells {
		t.Run(shell[0], func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			root, bin, script := filepath.Join(dir, "fuse"), filepath.Join(dir, "bin"), filepath.Join(dir, "runner")
			text := altered(t, string(runner.Script), map[string]string{
				"\nPATH=": "\nPATH=" + bin + ":", "\ngrace=100\n": "\ngrace=1\n", "\npace=5 relief=40\n": "\npace=1 relief=40\n",
			})
			docker := "#!/bin/sh\ntrap '' TERM\nwhile [ -e " + bin + "/hangs ]; do sleep 1; done\nsleep $(cat " + bin + "/takes)\n"
			// The host's clock is set on by a day at every question.
			date := "#!/bin/sh\n[ \"$1\" = +%s ] || exec /bin/date \"$@\"\necho >>" + bin + "/asked\necho $(($(/bin/date +%s) + 86400 * $(wc -l <" + bin + "/asked)))\n"
			hangs, takes := filepath.Join(bin, "hangs"), filepath.Join(bin, "takes")
			err := errors.Join(os.Mkdir(bin, 0o700), os.WriteFile(script, []byte(text), 0o700), os.WriteFile(hangs, nil, 0o600), os.WriteFile(takes, []byte("0"), 0o600),
				os.WriteFile(filepath.Join(bin, "docker"), []byte(docker), 0o700), os.WriteFile(filepath.Join(bin, "date"), []byte(date), 0o700))
			if err != nil {
				t.Fatal(err)
			}
			ends := func(op, seconds, want string) {
				t.Helper()
				args := slices.Concat(shell[1:], []string{script, "start", root, "inst1", "1", op, "a--p1", "p1", "destroy", seconds})
				if out, err := exec.CommandContext(t.Context(), shell[0], args...).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				rec := filepath.Join(root, "ops", "inst1", op)
				testkit.Eventually(t, 2*time.Minute, op+" ends", func() bool {
					_, err := os.Stat(filepath.Join(rec, "exit"))
					return err == nil
				})
				exit, err := os.ReadFile(filepath.Join(rec, "exit"))
				said, serr := os.ReadFile(filepath.Join(rec, "err"))
				if errors.Join(err, serr) != nil || string(exit) != want || (want == "124\n") != strings.Contains(string(said), "its time of 2 s was over") {
					t.Errorf("%s ended with %q, want %q: %s", op, exit, want, said)
				}
				testkit.Eventually(t, time.Minute, "nothing of it is left", func() bool { return len(processesOf(t, dir)) == 0 })
			}
			ends("op1", "2", "124\n")
			if err := errors.Join(os.Remove(hangs), os.WriteFile(takes, []byte("2"), 0o600)); err != nil { // in which its time is looked at
				t.Fatal(err)
			}
			ends("op2", "90", "0\n")
		})
	}
}

// No operation waits for the daemon for ever: what asks it has a limit of its own.
func TestWhatAsksTheDaemonEnds(t *testing.T) {
	text := string(runner.Script)
	// Calls and looks are ended as a whole; logs and commands end with their connection.
	others := regexp.MustCompile(`^(look_[a-z]+|composes|enroll|members|past|follow|execute|reach|logins)$`)
	bare := regexp.MustCompile(`(^|[;&|({!]|\bif|\bdo|\bthen) *docker |\$\(docker `)
	heads, found := function.FindAllStringSubmatchIndex(text, -1), 0
	for i, h := range heads {
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		name := text[h[2]:h[3]]
		for line := range strings.Lines(text[h[0]:end]) {
			if !bare.MatchString(strings.TrimSpace(line)) || strings.HasPrefix(strings.TrimSpace(line), "#") {
				continue
			}
			if found++; !others.MatchString(name) {
				t.Errorf("%s may wait for ever: %s", name, line)
			}
		}
	}
	if found == 0 {
		t.Error("nobody asks the daemon: the search is blind")
	}
}

// An operation is at work once it was asked for, also on a host that takes long to let
// its first program begin: nobody hears that it is lost.
func TestAnOperationThatBeginsLateIsNotLost(t *testing.T) {
	t.Parallel()
	for _, shell := range shells {
		t.Run(shell[0], func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			root, script, begin := filepath.Join(dir, "fuse"), filepath.Join(dir, "runner"), filepath.Join(dir, "begin")
			text := altered(t, string(runner.Script), map[string]string{
				"\nlisten=100\n": "\nlisten=1\n", "\nrun() {\n": "\nrun() {\n\twhile [ ! -e " + begin + " ]; do sleep 0.1; done\n",
			})
			if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
			call := func(args ...string) string {
				t.Helper()
				out, err := exec.CommandContext(t.Context(), shell[0], slices.Concat(shell[1:], []string{script, args[0], root, "inst1"}, args[1:])...).Output()
				if err != nil {
					t.Fatalf("%v: %v", args, err)
				}
				state, _, _ := strings.Cut(string(out), "\n")
				return state
			}
			call("start", "1", "op1", "a--p1", "p1", "files", "60")
			if state := call("poll", "op1"); state != "running" {
				t.Errorf("before it has begun it is %q", state)
			}
			if err := os.WriteFile(begin, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			testkit.Eventually(t, time.Minute, "it ends", func() bool { return call("poll", "op1") != "running" })
			if state := call("poll", "op1"); state != "73" && state != "64" { // it was given nothing to write
				t.Errorf("it ended with %q", state)
			}
		})
	}
}
