package runner_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/runner"
)

// What is mounted below a directory lies elsewhere and is somebody's: it does not go
// with the directory.
func TestMountsDoNotGo(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "docker"), []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := altered(t, string(runner.Script), map[string]string{"\nPATH=": "\nPATH=" + bin + ":"})
	project, err := model.ParseProject("a--p1")
	if err != nil {
		t.Fatal(err)
	}
	marker, err := model.Marker{Kind: model.KindPlayground, Installation: "inst1", Marquee: "m1", Playground: "p1", Project: project, Epoch: 1}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, shell := range shells {
		for kind, c := range map[string]struct {
			dir, status string
		}{"purge": {"swept/inst1/a--p1", "73\n"}, "destroy": {"playgrounds/a--p1", "77\n"}} {
			base := t.TempDir()
			root, theirs, script := filepath.Join(base, "fuse"), filepath.Join(base, "theirs"), filepath.Join(base, "runner")
			disk := filepath.Join(base, `a\ disk`) // as the kernel escapes it
			if err := errors.Join(os.Mkdir(disk, 0o700), os.Symlink(disk, root)); err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(root, c.dir)
			at := filepath.Join(dir, "data", "in it")
			aged(t, 0, filepath.Join(theirs, "work"), at+"/", filepath.Join(dir, ".fuse", "owner.json"))
			for _, op := range []string{"op1", "op2"} {
				aged(t, 0, filepath.Join(root, "ops", "inst1", op, "what"))
			}
			if err := os.WriteFile(filepath.Join(dir, ".fuse", "owner.json"), marker, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount(theirs, at, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) }) // it may be gone
			run := func(op string) (exit, said string) {
				argv := append(slices.Clone(shell[1:]), script, "run", root, "inst1", op, "a--p1", "p1", kind, "60")
				out, _ := exec.CommandContext(t.Context(), shell[0], argv...).CombinedOutput() // how it ended it writes down
				raw, err := os.ReadFile(filepath.Join(root, "ops", "inst1", op, "exit"))
				if err != nil {
					t.Fatal(err)
				}
				return string(raw), string(out)
			}
			if exit, said := run("op1"); exit != c.status || !strings.Contains(said, "umount it there") {
				t.Errorf("%s: %s ends with %q: %s", shell[0], kind, exit, said)
			}
			if _, err := os.Stat(filepath.Join(theirs, "work")); err != nil {
				t.Errorf("%s: %s took what was mounted: %v", shell[0], kind, err)
			}
			if err := unix.Unmount(at, 0); err != nil {
				t.Fatal(err)
			}
			if exit, said := run("op2"); exit != "0\n" {
				t.Errorf("%s: %s ends with %q once it is unmounted: %s", shell[0], kind, exit, said)
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("%s: after a %s the directory is there: %v", shell[0], kind, err)
			}
		}
	}
}
