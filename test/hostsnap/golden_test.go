package hostsnap

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/testkit"
)

// goldens are the directories of golden snapshots that are complete.
func goldens(t *testing.T, r *rig) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(r.dir, "golden", "*", "golden.json"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// lends says whether there is a machine of nobody: it goes last, once the capture
// that it was made for can be found.
func lends(t *testing.T, r *rig) bool {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(r.dir, "lent", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(left) > 0
}

// goesOn creates a machine that goes on from a golden snapshot. A machine that is
// busy with other tests may be too slow for that, and then boots.
func goesOn(r *rig, id string, spec fleet.Spec) (v *vm, took time.Duration) {
	r.t.Helper()
	for range 4 {
		begun := time.Now()
		v = r.create(id, spec, provider.GoldenAuto)
		took = time.Since(begun)
		if v.created.Boot.Mode == fleet.BootGolden {
			break
		}
		v.destroy()
	}
	return v, took
}

func TestGolden(t *testing.T) {
	r := newRig(t, 4<<30)
	begun := time.Now()
	first := r.create("first", small, provider.GoldenAuto)
	cold := time.Since(begun)
	if first.created.Boot.Mode != fleet.BootCold || first.created.Certificate != nil {
		t.Errorf("the first of a shape came up %s", first.created.Boot.Mode)
	}
	first.destroy()
	testkit.Eventually(t, 8*time.Minute, "a golden snapshot is made", func() bool { return len(goldens(t, r)) == 1 && !lends(t, r) })
	larger := small
	larger.StorageGB = 3
	second, took := goesOn(r, "second", larger)
	t.Logf("cold %s, golden %s: %.2f of it", cold.Round(time.Millisecond), took.Round(time.Millisecond), took.Seconds()/cold.Seconds())
	c := second.created.Certificate
	if second.created.Boot.Mode != fleet.BootGolden || c == nil || len(c.Lacks()) > 0 || c.Cause != fleet.ThawGolden {
		t.Fatalf("mode %s, certificate %+v", second.created.Boot.Mode, c)
	}
	if got := second.sh("hostname; cat /etc/machine-id; cat /fuse/auth-token; ls /fuse"); got != "second\n"+second.cred.MachineID+"\n"+second.token+"auth-token\ntls" {
		t.Errorf("the machine says %q", got)
	}
	if got := second.sh(`df -m / | awk 'END { print ($2 > 2500) }'`); got != "1" {
		t.Errorf("its disk was not grown: %s", second.sh("df -m /"))
	}
	if got := second.sh(`mount -t tmpfs none /mnt && touch /mnt/x && cat /proc/uptime >/dev/null && echo ok`); got != "ok" {
		t.Error(got)
	}
	third, _ := goesOn(r, "third", small)
	if a, b := second.sh(unique["urandom"]), third.sh(unique["urandom"]); a == b || third.created.Boot.Mode != fleet.BootGolden {
		t.Errorf("two of a shape: urandom %q and %q, mode %s", a, b, third.created.Boot.Mode)
	}
	second.destroy()
	third.destroy()

	// One that is damaged is not used: the machine boots.
	for _, f := range goldens(t, r) {
		spoil(t, filepath.Dir(f))
	}
	fourth := r.create("fourth", small, provider.GoldenAuto)
	if fourth.created.Boot.Mode != fleet.BootCold {
		t.Errorf("a damaged golden snapshot was used: %s", fourth.created.Boot.Mode)
	}
	if left := goldens(t, r); len(left) != 0 {
		t.Errorf("it is still there: %v", left)
	}
}

// spoil cuts short what is a capture's alone: files with other names are other
// captures', machines' and images', too.
func spoil(t *testing.T, dir string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			t.Fatal(err)
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if ok && st.Nlink == 1 && info.Mode().IsRegular() && filepath.Ext(f.Name()) != ".json" {
			if err := os.Truncate(filepath.Join(dir, f.Name()), info.Size()/2); err != nil {
				t.Fatal(err)
			}
		}
	}
}
