package qemu

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/testkit"
)

// memoryLoad puts test/memload into a machine and has it write, from then on, to
// mb of its memory, to files in memory and to files on its disk: a megabyte at once,
// and without a rest in a long run. The rest leaves the processor to the forks.
func (b *bench) memoryLoad(inst driver.Instance, mb int) {
	b.t.Helper()
	rest := time.Duration(testkit.Count(30, 0)) * time.Millisecond
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
	// What is dirty is written soon, also while the processes stand still.
	b.sh(inst, "echo 20 >/proc/sys/vm/dirty_writeback_centisecs; mkdir /root/load /dev/shm/load; /root/memload "+rest.String()+" "+fmt.Sprint(mb)+" /root/load /dev/shm/load >/root/memload.out 2>&1 </dev/null & "+
		"until [ -e /root/load/file-5 ]; do sleep 0.1; done")
}

// memoryWhole ends the load in a machine once it has compared all that it wrote,
// and says what the kernel and it found. It may be asked again.
const memoryWhole = `
touch /root/load/stop
n=0; until [ -s /root/load/result ] || [ $n = 600 ]; do n=$((n+1)); sleep 0.5; done
dmesg | grep -iE 'corrupt|bad page|BUG:|EXT4-fs error'
cat /root/memload.out /root/load/result`

// wantWhole fails the test unless a machine has lost nothing of its load. A guest
// that is too busy to keep the connection is asked again.
func (b *bench) wantWhole(inst driver.Instance, who string) {
	b.t.Helper()
	got, err := said(inst, memoryWhole)
	for range 2 {
		if err == nil {
			break
		}
		b.t.Logf("%s is asked again: %v", who, err)
		got, err = said(inst, memoryWhole)
	}
	if err != nil || !strings.HasPrefix(got, "whole: ") || strings.HasPrefix(got, "whole: 0 ") {
		b.t.Errorf("%s: %s, %v", who, got, err)
	}
}

// TestForksHaveTheWholeMemory captures a machine that writes to its memory and
// its disk all the time, and has every fork compare all of its pages and files
// with what they have to be: of one instant, none of an earlier one. While a fork
// does that, the next capture is under way.
func TestForksHaveTheWholeMemory(t *testing.T) {
	b := newBench(t, Config{})
	vm := b.vm()
	vm.RamMB = testkit.Count(128, 256)
	inst, err := b.start(vm)
	if err != nil {
		t.Fatal(err)
	}
	defer b.end(inst, vm)
	b.memoryLoad(inst, vm.RamMB/4)
	var last sync.WaitGroup // the comparison of the fork before
	defer last.Wait()
	for n := range testkit.Count(20, 200) {
		begun := time.Now()
		a := b.artifact()
		if _, err := b.d.Snapshot(t.Context(), vm, driver.SnapshotRequest{To: a, Live: true, Volatile: n%4 != 0}); err != nil {
			t.Fatalf("snapshot %d: %v", n, err)
		}
		taken := time.Since(begun)
		last.Wait()
		child := b.vm()
		child.RamMB = vm.RamMB
		begun = time.Now()
		r, err := b.d.Fork(t.Context(), child, b.identity(child), a, nil)
		if err != nil {
			t.Fatalf("fork %d: %v", n, err)
		}
		last.Go(func() {
			defer func() {
				b.end(r.Instance, child)
				if err := b.d.Discard(context.WithoutCancel(t.Context()), a); err != nil {
					t.Error(err)
				}
			}()
			if _, err := thawed(child, r, fleet.ThawFork); err != nil {
				t.Errorf("fork %d: %v", n, err)
				return
			}
			b.wantWhole(r.Instance, child.ID)
			t.Logf("snapshot %d: %s, fork to its end: %s", n, taken.Round(time.Millisecond), time.Since(begun).Round(time.Millisecond))
		})
	}
	last.Wait()
	b.wantWhole(inst, "the source")
}
