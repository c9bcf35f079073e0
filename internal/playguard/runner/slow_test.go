package runner_test

import (
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
			var trouble []string
			for _, share := range []int{4, 20, 100} { // what is not slow comes in time, on a machine of any load
				if trouble = slowProject(t, shell, share); len(trouble) == 0 {
					return
				}
			}
			t.Errorf("with whatever time: %s", strings.Join(trouble, "\n"))
		})
	}
}

// slowProject says what is wrong with looks at a host that has one, at which each project
// has so many seconds.
func slowProject(t *testing.T, shell []string, share int) (trouble []string) {
	t.Helper()
	script, root, _ := hosted(t, "")
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	changed := altered(t, string(text), map[string]string{"\nlook_share=4 look_begin=14\n": fmt.Sprintf("\nlook_share=%d look_begin=600\n", share)})
	if err := os.WriteFile(script, []byte(changed), 0o700); err != nil {
		t.Fatal(err)
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
	wrong := func(format string, args ...any) { trouble = append(trouble, fmt.Sprintf(format, args...)) }
	look := func() string {
		t.Helper()
		nonce := fmt.Sprintf("%032x", rand.Uint64()) // by which a look ends what is its own
		out, err := exec.CommandContext(t.Context(), shell[0], append(slices.Clone(shell[1:]), script, "observe", root, "inst1", nonce)...).Output()
		if err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, 2*time.Minute, "nothing of the look is left", func() bool { return len(processesOf(t, root)) == 0 })
		return string(out)
	}
	out := look()
	for _, want := range []string{
		"PART marker:a--p1 0 ", "PART checkouts:a--p1 0 ", "\n-others-\n", "PART git:a--p1:app 0 ", "PART files:b--p2 0 ", "PART git:b--p2:app 0 ", "\nEND ",
	} {
		if !strings.Contains(out, want) {
			wrong("%q is not in\n%s", want, out)
		}
	}
	for _, bad := range []string{"PART git:a--p1:held", "two words", "line", "PART git:a--p1:- "} {
		if strings.Contains(out, bad) {
			t.Errorf("%q is in\n%s", bad, out)
		}
	}
	slow := filepath.Join(root, "installations", "inst1.slow")
	if text, err := os.ReadFile(slow); err != nil || string(text) != "a--p1\n" {
		wrong("%q are slow: %v", text, err)
	}
	if err := os.Remove(index); err != nil {
		t.Fatal(err)
	}
	out = look()
	if a, b := strings.Index(out, "PART marker:a--p1"), strings.Index(out, "PART marker:b--p2"); a < b || b < 0 || !strings.Contains(out, "PART git:a--p1:held 0 ") {
		wrong("the slow one is at %d, the other at %d", a, b)
	}
	if text, err := os.ReadFile(slow); err != nil || len(text) != 0 {
		wrong("it is still thought to be slow: %q %v", text, err)
	}
	return trouble
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
