package qemu

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/testkit"
)

// beats is a service in an image of its own that counts. Its first process reads
// its number of the same file as its children do.
const beats = `{"services":{"beats":{"image":"minimal","command":["sh","-c","n=0; while :; do n=$((n+1)); echo $n > /beat.new; mv /beat.new /beat; sleep 0.1; done"]}}}`

// beatEvery is the least time between two of them.
const beatEvery = 100 * time.Millisecond

// beat is the count of a machine's service, as its overlay has it.
const beat = "cat /var/lib/fuse/services/beats@*/upper/beat"

func (b *bench) count(inst driver.Instance) (n int) {
	b.t.Helper()
	if _, err := fmt.Sscan(b.sh(inst, beat), &n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

// beatsOn waits until the service of a machine counts on from n, and its image is
// what it was.
func (b *bench) beatsOn(inst driver.Instance, n int, sum string) {
	b.t.Helper()
	testkit.Eventually(b.t, testWithin, "the service goes on", func() bool { return b.count(inst) > n })
	if got := b.sh(inst, "echo 3 > /proc/sys/vm/drop_caches; md5sum < /dev/vdb"); got != sum {
		b.t.Errorf("the image's disk is %s, and was %s", got, sum)
	}
}

// TestServicesGoOnInForks captures a machine whose service runs in an image of
// its own, once that has left the store: forks, restores and resumptions have it
// as it was.
func TestServicesGoOnInForks(t *testing.T) {
	b := newBench(t, Config{BootTimeout: 8 * time.Minute})
	vm := b.vm()
	vm.ServiceImages = []string{"minimal"}
	inst, err := b.start(vm)
	if err != nil {
		t.Fatal(err)
	}
	if err := inst.Guest().WriteFiles(t.Context(), []fleet.GuestFile{{Path: fleet.GuestManifestPath, Mode: 0o600, Data: []byte(beats)}}); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, bootWithin, "the service counts", func() bool { return b.sh(inst, beat+" 2>/dev/null || true") != "" })
	sum := b.sh(inst, "md5sum < /dev/vdb")
	a := b.artifact()
	child := b.vm()
	last := inst
	defer func() {
		b.clearUp(last, vm, a)
		b.clearUp(nil, child, a)
	}()
	if _, err := b.d.Snapshot(t.Context(), vm, driver.SnapshotRequest{To: a, Live: true}); err != nil {
		t.Fatal(err)
	}
	b.beatsOn(inst, b.count(inst), sum)
	at := b.count(inst)

	other := b.vm()
	if _, err := b.d.Fork(t.Context(), other, b.identity(other), a, nil); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Errorf("a fork without the images: %v", err)
	}
	child.ServiceImages = vm.ServiceImages
	r, err := b.d.Fork(t.Context(), child, b.identity(child), a, nil)
	if err != nil {
		t.Fatal(err)
	}
	thawed := time.Now()
	b.thaw(child, r, fleet.ThawFork)
	if n, since := b.count(r.Instance), int(time.Since(thawed)/beatEvery); n > at+since {
		t.Errorf("the fork's service is at %d, and its source's was at %d later; it had time for %d", n, at, since)
	}
	b.beatsOn(r.Instance, b.count(r.Instance), sum)
	b.end(r.Instance, child)
	if testkit.Count(0, 1) == 0 {
		return
	}
	if r, err = b.d.Restore(t.Context(), vm, a, nil); err != nil {
		t.Fatal(err)
	}
	last = r.Instance
	b.thaw(vm, r, fleet.ThawRestore)
	b.beatsOn(r.Instance, b.count(r.Instance), sum)
	if _, err := b.d.Pause(t.Context(), vm, nil); err != nil {
		t.Fatal(err)
	}
	if r, err = b.d.Resume(t.Context(), vm, nil); err != nil {
		t.Fatal(err)
	}
	last = r.Instance
	b.thaw(vm, r, fleet.ThawResume)
	b.beatsOn(r.Instance, b.count(r.Instance), sum)
	b.end(r.Instance, vm)
	if err := b.d.Discard(t.Context(), a); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(a.Dir); err != nil || len(left) > 0 {
		t.Errorf("left of the capture: %v, %v", left, err)
	}
}
