package runner_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/runner"
)

// aged makes files, or directories where a name ends with a slash, of that age.
func aged(t *testing.T, age time.Duration, names ...string) {
	t.Helper()
	when := time.Now().Add(-age)
	for _, name := range names {
		dir, isDir := strings.CutSuffix(name, "/")
		err := os.MkdirAll(filepath.Dir(dir), 0o700)
		if err == nil && isDir {
			err = os.MkdirAll(dir, 0o700)
		} else if err == nil {
			err = os.WriteFile(dir, []byte("a--p1 mark 1\n"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range []string{dir, filepath.Dir(dir)} {
			if err := os.Chtimes(at, when, when); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// What a host keeps for us is bounded: operations, versions of the script, what cut
// shells left.
func TestReap(t *testing.T) {
	const hour, day = time.Hour, 24 * time.Hour
	for _, shell := range shells {
		root, tmp := filepath.Join(t.TempDir(), "fuse"), t.TempDir()
		ops := filepath.Join(root, "ops", "inst1")
		for i := range 9 { // the last 5 of them yesterday's
			age := time.Duration(i) * time.Minute
			if i >= 4 {
				age += 25 * hour
			}
			op := filepath.Join(ops, fmt.Sprintf("op%d", i))
			aged(t, age, filepath.Join(op, "exit"), filepath.Join(op, "what"))
		}
		aged(t, 3*day, filepath.Join(ops, "old", "what"), filepath.Join(root, "playgrounds", ".new-old", "docker-config"))
		aged(t, 40*hour, filepath.Join(ops, "open", "what")) // no end of it is known
		bin := filepath.Join(root, "bin")
		aged(t, 40*day, filepath.Join(bin, "runner-old"), filepath.Join(bin, ".new-17"), filepath.Join(bin, "runner-this"), filepath.Join(bin, "notes"))
		aged(t, 20*day, filepath.Join(bin, "runner-other"))
		aged(t, 2*day, filepath.Join(tmp, "fuse-runner.abcdef")+"/", filepath.Join(tmp, "somebodys")+"/")
		aged(t, hour, filepath.Join(tmp, "fuse-runner.young")+"/")
		script := filepath.Join(bin, "runner-this")
		text := altered(t, string(runner.Script), map[string]string{"ops_most=500": "ops_most=6"})
		if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		aged := time.Now().Add(-40 * day)
		if err := os.Chtimes(script, aged, aged); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), shell[0], append(slices.Clone(shell[1:]), script, "reap", root, "inst1", "1")...)
		cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", shell[0], err, out)
		}
		if got := names(t, ops); !slices.Equal(got, []string{"op0", "op1", "op2", "op3", "op4", "op5", "open"}) {
			t.Errorf("%s: operations %v are left", shell[0], got)
		}
		if got := names(t, filepath.Join(root, "playgrounds")); len(got) != 0 {
			t.Errorf("%s: what a cut operation was given is left: %v", shell[0], got)
		}
		if got := names(t, bin); !slices.Equal(got, []string{"notes", "runner-other", "runner-this"}) {
			t.Errorf("%s: bin has %v", shell[0], got)
		}
		if got := names(t, tmp); !slices.Equal(got, []string{"fuse-runner.young", "somebodys"}) {
			t.Errorf("%s: %v", shell[0], got)
		}
	}
}

// A shell that is ended at its limit leaves nothing in the host's directory for
// temporary files: what it was given for a repository is a secret.
func TestACutShellLeavesNothing(t *testing.T) {
	for _, shell := range shells {
		root, tmp, bin := t.TempDir(), t.TempDir(), t.TempDir()
		if err := os.WriteFile(filepath.Join(bin, "docker"), []byte("#!/bin/sh\nexec sleep 60\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		script := filepath.Join(t.TempDir(), "runner")
		text := altered(t, string(runner.Script), map[string]string{"\nPATH=": "\nPATH=" + bin + ":"})
		if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
		argv := append(append([]string{"-k", "90", "0.5"}, shell...), script, "observe", root, "inst1", "nonce")
		cmd := exec.CommandContext(t.Context(), "timeout", argv...)
		cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
		if out, err := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 124 {
			t.Fatalf("%s: it was not cut: %v: %s", shell[0], err, out)
		}
		if got := names(t, tmp); len(got) != 0 {
			t.Errorf("%s: %v is left", shell[0], got)
		}
	}
}

// With what was set aside of a project goes what was kept of its files, unless that
// may be somebody's work.
func TestAPurgeTakesWhatWasKeptOfFiles(t *testing.T) {
	for _, shell := range shells {
		root := filepath.Join(t.TempDir(), "fuse")
		for _, c := range []struct {
			project, kept string
			stays         bool
		}{{"a--p1", "compose.yml", false}, {"b--p2", "props/app/.git/HEAD", true}} {
			project, err := model.ParseProject(c.project)
			if err != nil {
				t.Fatal(err)
			}
			marker, err := model.Marker{Kind: model.KindPlayground, Installation: "inst1", Marquee: "m1", Playground: project.ID(), Project: project, Epoch: 1}.Encode()
			if err != nil {
				t.Fatal(err)
			}
			swept, aside := filepath.Join(root, "swept", "inst1", c.project), filepath.Join(root, "aside", c.project)
			aged(t, 0, filepath.Join(swept, ".fuse", "owner.json"), filepath.Join(aside, "op1", c.kept), filepath.Join(root, "ops", "inst1", "op-"+c.project, "what"))
			if err := os.WriteFile(filepath.Join(swept, ".fuse", "owner.json"), marker, 0o600); err != nil {
				t.Fatal(err)
			}
			local(t, shell, "run", root, "inst1", "op-"+c.project, c.project, string(project.ID()), "purge", "60")
			if exit, err := os.ReadFile(filepath.Join(root, "ops", "inst1", "op-"+c.project, "exit")); err != nil || string(exit) != "0\n" {
				t.Fatalf("%s: %s: %q %v", shell[0], c.project, exit, err)
			}
			if _, err := os.Stat(swept); err == nil {
				t.Errorf("%s: %s is still there", shell[0], c.project)
			}
			if _, err := os.Stat(aside); (err == nil) != c.stays {
				t.Errorf("%s: what was kept of %s: %v", shell[0], c.project, err)
			}
		}
	}
}
