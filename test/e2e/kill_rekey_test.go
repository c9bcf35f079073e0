package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestKillAtEveryStepOfARekey kills fuse server rekey in the middle and before
// its end. A server starts on what is left, and the next rekey ends it.
func TestKillAtEveryStepOfARekey(t *testing.T) {
	for _, point := range []string{"rekey.batch", "rekey.finish"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			d := dev(t, bins.failing, dir, nil, "--driver", "sim")
			if err := d.create("one"); err != nil {
				t.Fatal(err)
			}
			rekey := func(env ...string) (string, error) {
				cmd := exec.CommandContext(t.Context(), bins.failing, "server", "rekey", "--data-dir", dir)
				cmd.Env = append(os.Environ(), env...)
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			if out, err := rekey(); err == nil || !strings.Contains(out, "stopped first") {
				t.Errorf("on a live server: %v\n%s", err, out)
			}
			d.stop()
			before, err := os.ReadFile(filepath.Join(dir, "key"))
			if err != nil {
				t.Fatal(err)
			}
			var killed *exec.ExitError
			if out, err := rekey("FUSE_FAILPOINTS=" + point + "=exit"); !errors.As(err, &killed) {
				t.Fatalf("not killed: %v\n%s", err, out)
			}
			if now, err := os.ReadFile(filepath.Join(dir, "key")); err != nil || string(now) != string(before) {
				t.Errorf("the key has changed (%v)", err)
			}

			works := func() {
				t.Helper()
				d = dev(t, bins.failing, dir, nil, "--driver", "sim")
				if got := d.must("exec", "fuse-one", "--", "echo", "still here"); got != "still here\n" {
					t.Errorf("the environment says %q", got)
				}
				d.must("rotate-token", "fuse-one")
			}
			works()
			d.stop()
			if out, err := rekey(); err != nil || !strings.Contains(out, "done: ") {
				t.Fatalf("again: %v\n%s", err, out)
			}
			if now, err := os.ReadFile(filepath.Join(dir, "key")); err != nil || string(now) == string(before) {
				t.Errorf("the key has not changed (%v)", err)
			}
			works()
			d.must("rm", "fuse-one")
		})
	}
}
