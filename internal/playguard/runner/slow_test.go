package runner_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

// One project whose containers do what they can to hold a look up takes nothing
// away from what is seen of the others, and comes last the next time.
func TestASlowProjectIsItsOwnTrouble(t *testing.T) {
	for _, shell := range shells {
		t.Run(shell[0], func(t *testing.T) {
			t.Parallel()
			script, root, _ := hosted(t, "")
			// What is not slow comes in time on a machine of any load.
			text, err := os.ReadFile(script)
			if err != nil {
				t.Fatal(err)
			}
			const share = "\nlook_share=4 look_begin=14\n"
			if !bytes.Contains(text, []byte(share)) {
				t.Fatalf("there is no %q", share)
			}
			text = bytes.Replace(text, []byte(share), []byte("\nlook_share=8 look_begin=600\n"), 1)
			if err := os.WriteFile(script, text, 0o700); err != nil {
				t.Fatal(err)
			}
			observe := func(nonce string) string {
				t.Helper()
				out, err := exec.CommandContext(t.Context(), shell[0], append(slices.Clone(shell[1:]), script, "observe", root, "inst1", nonce)...).Output()
				if err != nil {
					t.Fatal(err)
				}
				return string(out)
			}
			props := func(project string, names ...string) string {
				return filepath.Join(append([]string{root, "playgrounds", project, "props"}, names...)...)
			}
			for _, d := range []string{
				props("a--p1", "held"), props("a--p1", "two words"), props("a--p1", "*"), props("a--p1", "line\nline"), props("a--p1", "-rf"), props("a--p1", "app"),
				props("b--p2", "app"), filepath.Join(root, "installations"),
			} {
				if err := os.MkdirAll(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, d := range []string{props("a--p1", "held"), props("a--p1", "app"), props("b--p2", "app")} {
				if out, err := exec.CommandContext(t.Context(), "git", "init", "-q", d).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
			}
			index := props("a--p1", "held", ".git", "index")
			if err := syscall.Mkfifo(index, 0o600); err != nil { // who opens it waits
				t.Fatal(err)
			}
			nonce := fmt.Sprintf("%032x", rand.Uint64()) // by which a look ends what is its own
			out := observe(nonce)
			for _, want := range []string{
				"PART marker:a--p1 0 ", "PART checkouts:a--p1 0 ", "\n-others-\n", "PART git:a--p1:app 0 ", "PART files:b--p2 0 ", "PART git:b--p2:app 0 ", "\nEND ",
			} {
				if !strings.Contains(out, want) {
					t.Errorf("%q is not in\n%s", want, out)
				}
			}
			for _, bad := range []string{"PART git:a--p1:held", "two words", "line", "PART git:a--p1:- "} {
				if strings.Contains(out, bad) {
					t.Errorf("%q is in\n%s", bad, out)
				}
			}
			testkit.Eventually(t, 2*time.Minute, "nothing of the look is left", func() bool { return len(processesOf(t, root)) == 0 })
			slow := filepath.Join(root, "installations", "inst1.slow")
			if text, err := os.ReadFile(slow); err != nil || string(text) != "a--p1\n" {
				t.Errorf("%q %v", text, err)
			}
			if err := os.Remove(index); err != nil {
				t.Fatal(err)
			}
			out = observe(nonce)
			if a, b := strings.Index(out, "PART marker:a--p1"), strings.Index(out, "PART marker:b--p2"); a < b || b < 0 || !strings.Contains(out, "PART git:a--p1:held 0 ") {
				t.Errorf("the slow one is at %d, the other at %d", a, b)
			}
			if text, err := os.ReadFile(slow); err != nil || len(text) != 0 {
				t.Errorf("it is still thought to be slow: %q %v", text, err)
			}
		})
	}
}

// processesOf are the command lines of processes that name a directory.
func processesOf(t *testing.T, dir string) (lines []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		raw, err := os.ReadFile(path)
		if line := strings.ReplaceAll(string(raw), "\x00", " "); err == nil && strings.Contains(line, dir) {
			lines = append(lines, line)
		}
	}
	return lines
}
