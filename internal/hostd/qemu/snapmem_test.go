package qemu

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/testkit"
)

// memoryLoad puts test/memload into a machine and has it write, from then on, to
// its memory, to files in memory and to files on its disk.
func (b *bench) memoryLoad(inst driver.Instance) {
	b.t.Helper()
	out := filepath.Join(b.t.TempDir(), "memload")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", out, "github.com/fusevm/fuse/test/memload")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("build memload: %v: %s", err, text)
	}
	program, err := os.ReadFile(out)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := inst.Guest().WriteFiles(context.Background(), []fleet.GuestFile{{Path: "/root/memload", Data: program, Mode: 0o755}}); err != nil {
		b.t.Fatal(err)
	}
	b.sh(inst, "mkdir /root/load /dev/shm/load; /root/memload 64 /root/load /dev/shm/load >/root/memload.out 2>&1 </dev/null & "+
		"until [ -e /root/load/file-5 ]; do sleep 0.1; done")
}

// memoryWhole ends the load in a machine once it has compared all that it wrote,
// and says what it and the kernel found. The kernel's own complaints come first.
const memoryWhole = `
touch /root/load/stop
while [ ! -e /root/load/result ]; do
	[ -s /root/memload.out ] && break
	sleep 0.05
done
dmesg | grep -iE 'corrupt|bad page|BUG:|EXT4-fs error'
cat /root/memload.out /root/load/result`

// wantWhole fails the test unless a machine has lost nothing of its load.
func (b *bench) wantWhole(inst driver.Instance, who string) {
	b.t.Helper()
	if got := b.sh(inst, memoryWhole); !strings.HasPrefix(got, "whole: ") || strings.HasPrefix(got, "whole: 0 ") {
		b.t.Errorf("%s: %s", who, got)
	}
}

// TestForksHaveTheWholeMemory captures a machine that writes to its memory and
// its disk all the time, and has every fork compare all of its pages and files
// with what they have to be: of one instant, none of an earlier one.
func TestForksHaveTheWholeMemory(t *testing.T) {
	b := newBench(t, Config{})
	vm := b.vm()
	inst, err := b.start(vm)
	if err != nil {
		t.Fatal(err)
	}
	defer b.end(inst, vm)
	b.memoryLoad(inst)
	var took struct{ snapshot, fork, thaw, whole, end time.Duration }
	for n := range testkit.Count(20, 200) {
		begun := time.Now()
		lap := func(d *time.Duration) { *d += time.Since(begun); begun = time.Now() }
		a := b.artifact()
		if _, err := b.d.Snapshot(t.Context(), vm, driver.SnapshotRequest{To: a, Live: true, Volatile: n%4 != 0}); err != nil {
			t.Fatalf("snapshot %d: %v", n, err)
		}
		lap(&took.snapshot)
		child := b.vm()
		r, err := b.d.Fork(t.Context(), child, b.identity(child), a, nil)
		if err != nil {
			t.Fatalf("fork %d: %v", n, err)
		}
		lap(&took.fork)
		b.thaw(child, r, fleet.ThawFork)
		lap(&took.thaw)
		b.wantWhole(r.Instance, r.Guest.Hostname)
		lap(&took.whole)
		b.end(r.Instance, child)
		if err := b.d.Discard(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		lap(&took.end)
	}
	t.Logf("took in all: %+v", took)
	b.wantWhole(inst, "the source")
}
