package e2e

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// small is a measurement that takes a second.
var small = []string{"bench", "control-plane", "--sizes", "0,20", "--serial", "3", "--burst", "32", "--reads", "5"}

// The measurement runs to its end, whoever serves, prints what the goals are
// about, and leaves neither process nor file nor environment.
func TestControlPlaneIsMeasured(t *testing.T) {
	for name, args := range map[string][]string{"processes": nil, "one process": {"--in-process"}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			cmd := exec.CommandContext(t.Context(), bins.fuse, append(append(small, "--data-dir", dir), args...)...)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			measured(t, string(out), "fsync of the data directory's disk", "journal alone", "host")
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

func TestARunningServerIsMeasured(t *testing.T) {
	d := dev(t, bins.fuse, t.TempDir(), nil, "--driver", "sim")
	remote := append(small, "--url", d.url, "--token-file", d.dir+"/token")
	measured(t, d.must(remote...))
	if ids := d.ids(); len(ids) > 0 {
		t.Errorf("environments are left: %v", ids)
	}
	d.must("create", "--task-id", "mine")
	if o := d.fuse(remote...); o.code == 0 || !strings.Contains(o.err, "1 environments") {
		t.Errorf("a server in use was measured: %+v", o)
	}
	if ids := d.ids(); len(ids) != 1 {
		t.Errorf("the environments are %v now", ids)
	}
}

func measured(t *testing.T, out string, also ...string) {
	t.Helper()
	for _, want := range append(also,
		"at 0 environments", "at 20 environments", "create, one at a time", "create, 16 at a time", "destroy, 16 at a time",
		"page of 200", "full listing", "/ready", "resident memory", "server",
	) {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}
