package drivertest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/thaw"
)

// RunSnapshots is the part of the suite for drivers that capture machines.
func RunSnapshots(t *testing.T, cfg Config) {
	if cfg.Within == 0 {
		cfg.Within = 3 * time.Minute // one boot, on a machine that is busy with others
	}
	for _, c := range []struct {
		name string
		run  func(*captures)
	}{
		{"Life", (*captures).life},
		{"Disk", (*captures).disk},
		{"Refuses", (*captures).refuses},
		{"FailsAtEachStep", (*captures).failsAtEachStep},
	} {
		t.Run(c.name, func(t *testing.T) {
			if cfg.Parallel {
				t.Parallel()
			}
			h := newHost(t, cfg)
			c.run(&captures{host: h, made: map[string]driver.Artifact{}})
		})
	}
}

// captures is a host whose driver captures.
type captures struct {
	*host
	made map[string]driver.Artifact
}

func (c *captures) drv() driver.Snapshotter {
	s, ok := c.host.drv.(driver.Snapshotter)
	if !ok {
		c.t.Fatal("the driver does not capture")
	}
	return s
}

func (c *captures) artifact() driver.Artifact {
	id := ulid.Make().String()
	a := driver.Artifact{ID: id, Dir: filepath.Join(c.dir, "snapshots", id)}
	if err := os.MkdirAll(a.Dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	c.made[id] = a
	c.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Within)
		defer cancel()
		if err := c.drv().Discard(ctx, a); err != nil {
			c.t.Errorf("discard: %v", err)
		}
	})
	return a
}

func (c *captures) take(vm driver.VM, live bool) (driver.Artifact, driver.SnapshotInfo) {
	c.t.Helper()
	a := c.artifact()
	info, err := c.drv().Snapshot(c.context(), vm, driver.SnapshotRequest{To: a, Live: live})
	if err != nil {
		c.t.Fatalf("snapshot: %v", err)
	}
	want := fleet.SnapshotKindDisk
	if live {
		want = fleet.SnapshotKindLive
	}
	if info.ID != a.ID || info.Kind != want || !strings.HasPrefix(info.Digest, "sha256:") || info.SizeBytes <= 0 || info.Source.UID != vm.UID || info.Machine.Driver == "" {
		c.t.Errorf("the snapshot is %+v", info)
	}
	read, err := c.drv().Inspect(c.context(), a, true)
	if err != nil || read.Digest != info.Digest || read.Kind != info.Kind {
		c.t.Errorf("inspected: %+v, %v", read, err)
	}
	return a, info
}

// settle renews a guest that goes on from memory; keep makes the machine count.
func (c *captures) settle(vm driver.VM, r driver.Revived, keep bool) driver.Instance {
	c.t.Helper()
	if !keep {
		r.Keep = nil
	}
	if g, ok := thaw.Of(r.Instance.Guest()); ok && r.ThawKey != "" {
		req := thaw.Request{
			Key: r.ThawKey, Cause: fleet.ThawFork, VM: vm, Address: r.Guest.Address, Nameservers: r.Guest.Nameservers, Keep: r.Keep,
			Identity: driver.Identity{
				Hostname: r.Guest.Hostname, MachineID: r.Guest.MachineID, Token: r.Guest.Token, CertPEM: r.Guest.CertPEM, KeyPEM: r.Guest.KeyPEM,
			},
		}
		cert, err := thaw.Do(c.context(), g, req)
		for try := 0; try < 5 && errors.Is(err, thaw.ErrLate); try++ { // the machine is busy with others
			cert, err = thaw.Do(c.context(), g, req)
		}
		if err != nil {
			c.t.Fatalf("thaw: %v", err)
		}
		if len(cert.Renewed) == 0 {
			c.t.Errorf("certificate: %+v", cert)
		}
	} else if r.Keep != nil {
		if err := r.Keep(c.context()); err != nil {
			c.t.Fatalf("keep: %v", err)
		}
	}
	return r.Instance
}

func (c *captures) fork(from driver.Artifact, name string) (driver.VM, driver.Instance) {
	c.t.Helper()
	vm := c.vm(name)
	c.t.Cleanup(func() { c.cleanUp(vm) })
	r, err := c.drv().Fork(c.context(), vm, c.identity(vm), from, nil)
	if err != nil {
		c.t.Fatalf("fork: %v", err)
	}
	return vm, c.settle(vm, r, true)
}

const tickPath = "/root/tick"

// begin lets something run in the guest that a capture of memory keeps, and
// writes a file.
func (c *captures) begin(inst driver.Instance) {
	c.t.Helper()
	c.write(inst, "first")
	if c.cfg.Guests {
		// The loop has the file open, and its count is in memory alone.
		c.sh(inst, "sh", "-c", "(exec 3>"+tickPath+"; i=0; while :; do i=$((i+1)); echo $i >&3; sleep 0.05; done) >/dev/null 2>&1 </dev/null & sleep 0.3")
	}
}

func (c *captures) write(inst driver.Instance, text string) {
	c.t.Helper()
	err := inst.Guest().WriteFiles(c.context(), []fleet.GuestFile{{Path: "/root/word", Mode: 0o600, Data: []byte(text)}})
	if err != nil {
		c.t.Fatal(err)
	}
}

// has fails the test unless the guest has that word, answers, and what began in
// it goes on from where it was: no count is left out.
func (c *captures) has(inst driver.Instance, word string, counting bool) {
	c.t.Helper()
	c.answers(inst)
	if got := c.sh(inst, "cat", "/root/word"); got != word {
		c.t.Errorf("the word is %q, want %q", got, word)
	}
	if !c.cfg.Guests || !counting {
		return
	}
	n := c.count(inst)
	for ctx := c.context(); c.count(inst) <= n; c.pause() {
		if ctx.Err() != nil {
			c.t.Fatalf("what counted does not count on from %d", n)
		}
	}
	if bad := c.sh(inst, "awk", "{ if ($1 != NR) { print NR \" is \" $1; exit } }", tickPath); bad != "" {
		c.t.Errorf("a count is wrong: %s", bad)
	}
}

func (c *captures) count(inst driver.Instance) int {
	c.t.Helper()
	n, err := strconv.Atoi(c.sh(inst, "tail", "-n", "1", tickPath))
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// life is one machine through everything that memory is captured for.
func (c *captures) life() {
	vm := c.vm("life")
	inst := c.start(vm)
	c.begin(inst)
	snap, info := c.take(vm, true)
	if info.MemoryBytes <= 0 {
		c.t.Errorf("the memory has %d bytes", info.MemoryBytes)
	}
	c.has(inst, "first", true)
	c.write(inst, "second")

	child, cinst := c.fork(snap, "child")
	c.has(cinst, "first", true)
	c.has(inst, "second", true)
	if c.cfg.Guests {
		c.tellsApartForks(map[string]driver.Instance{vm.ID: inst, child.ID: cinst})
	}
	c.write(cinst, "child's")
	second, _ := c.take(child, true)
	grandchild, ginst := c.fork(second, "grandchild")
	c.has(ginst, "child's", true)
	c.remove(child)
	c.close(cinst)
	if err := c.drv().Discard(c.context(), second); err != nil {
		c.t.Fatal(err)
	}
	c.has(ginst, "child's", true) // neither its parent nor the capture is needed
	c.close(ginst)

	inst = c.restored(vm, snap, inst)
	c.paused(vm, inst, grandchild)
	c.remove(vm)
	c.remove(grandchild)
	if err := c.drv().Discard(c.context(), snap); err != nil {
		c.t.Fatal(err)
	}
	if left, err := os.ReadDir(snap.Dir); err != nil || len(left) > 0 {
		c.t.Errorf("left of the snapshot: %v, %v", left, err)
	}
	c.nothing(vm, child, grandchild)
}

// restored puts the machine back, once in vain.
func (c *captures) restored(vm driver.VM, snap driver.Artifact, inst driver.Instance) driver.Instance {
	c.t.Helper()
	r, err := c.drv().Restore(c.context(), vm, snap, nil)
	if err != nil {
		c.t.Fatalf("restore: %v", err)
	}
	if err := r.Undo(c.context()); err != nil {
		c.t.Fatalf("undo: %v", err)
	}
	if r.Before != inst {
		c.t.Error("the machine before is another one")
	}
	c.has(inst, "second", true)
	r, err = c.drv().Restore(c.context(), vm, snap, nil)
	if err != nil {
		c.t.Fatalf("restore: %v", err)
	}
	again := c.settle(vm, r, true)
	c.has(again, "first", true)
	select {
	case <-inst.Done():
		c.t.Error("the machine before is said to have stopped")
	default:
	}
	// Over a restart.
	c.close(again)
	c.reopen()
	adopted, err := c.host.drv.Adopt(c.context(), vm)
	if err != nil {
		c.t.Fatalf("adopt: %v", err)
	}
	c.has(adopted, "first", true)
	c.write(adopted, "third")
	return adopted
}

// paused sets the machine aside, over a restart, and brings it back, once in
// vain.
func (c *captures) paused(vm driver.VM, inst driver.Instance, others ...driver.VM) {
	c.t.Helper()
	ctx, told := c.told()
	info, err := c.drv().Pause(ctx, vm, nil)
	told("a pause")
	if err != nil || info.Kind != fleet.SnapshotKindLive {
		c.t.Fatalf("pause: %+v, %v", info, err)
	}
	select {
	case <-inst.Done():
		c.t.Error("a paused machine is said to have stopped")
	default:
	}
	c.close(inst)
	c.reopen()
	var paused *driver.PausedError
	for range 2 {
		if _, err := c.host.drv.Adopt(c.context(), vm); !errors.As(err, &paused) || paused.Info.Digest != info.Digest {
			c.t.Fatalf("adopting a paused vm: %v", err)
		}
	}
	rep, err := c.host.drv.Sweep(c.context(), append(others, vm))
	if err != nil || len(rep.Removed)+len(rep.Reported) > 0 {
		c.t.Errorf("a sweep beside a paused vm: %+v, %v", rep, err)
	}
	ctx, told = c.told() // this program has read nothing of it yet
	r, err := c.drv().Resume(ctx, vm, nil)
	told("a resumption")
	if err != nil {
		c.t.Fatalf("resume: %v", err)
	}
	if err := r.Undo(c.context()); err != nil {
		c.t.Fatalf("undo: %v", err)
	}
	if _, err := c.host.drv.Adopt(c.context(), vm); !errors.As(err, &paused) {
		c.t.Fatalf("adopting a vm whose resume was undone: %v", err)
	}
	if r, err = c.drv().Resume(c.context(), vm, nil); err != nil {
		c.t.Fatalf("resume: %v", err)
	}
	inst = c.settle(vm, r, true)
	c.has(inst, "third", true)
	if _, err := c.drv().Resume(c.context(), vm, nil); fleet.CodeOf(err) != fleet.CodeConflict {
		c.t.Errorf("resuming what runs: %v", err)
	}
	c.close(inst)
}

// told hears how far a verb is. want fails the test unless it told bytes.
func (c *captures) told() (ctx context.Context, want func(what string)) {
	var mu sync.Mutex
	var all []driver.Progress
	ctx = driver.Telling(c.context(), func(p driver.Progress) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, p)
	})
	return ctx, func(what string) {
		c.t.Helper()
		mu.Lock()
		defer mu.Unlock()
		if len(all) == 0 {
			c.t.Errorf("%s did not tell how far it was", what)
		}
		for _, p := range all {
			if p.Part == "" || p.Done < 0 || p.Done > p.Total || p.Total == 0 {
				c.t.Errorf("%s told %+v", what, p)
			}
		}
	}
}

// tellsApartForks fails the test unless the fork has an identity of its own.
func (c *captures) tellsApartForks(insts map[string]driver.Instance) {
	c.t.Helper()
	seen := map[string]bool{}
	for id, inst := range insts {
		if name := c.sh(inst, "hostname"); name != id {
			c.t.Errorf("hostname is %q, want %q", name, id)
		}
		seen[c.sh(inst, "cat", "/etc/machine-id")] = true
		seen[c.sh(inst, "head", "-c", "16", "/proc/sys/kernel/random/uuid")] = true
	}
	if len(seen) != 2*len(insts) {
		c.t.Errorf("a fork shares something with its source: %v", seen)
	}
}

// disk is about captures without memory.
func (c *captures) disk() {
	vm := c.vm("disk")
	inst := c.start(vm)
	c.begin(inst)
	snap, info := c.take(vm, false)
	if info.MemoryBytes != 0 {
		c.t.Errorf("a snapshot of the disk has %d bytes of memory", info.MemoryBytes)
	}
	c.has(inst, "first", true)
	c.write(inst, "second")
	child := c.vm("disk-child")
	child.StorageGB, child.RamMB = 2, 320 // a boot may have another shape
	c.t.Cleanup(func() { c.cleanUp(child) })
	r, err := c.drv().Fork(c.context(), child, c.identity(child), snap, nil)
	if err != nil || r.Live {
		c.t.Fatalf("fork: %+v, %v", r, err)
	}
	c.has(r.Instance, "first", false)
	c.close(r.Instance)
	c.remove(child)

	r, err = c.drv().Restore(c.context(), vm, snap, nil)
	if err != nil {
		c.t.Fatalf("restore: %v", err)
	}
	again := c.settle(vm, r, true)
	c.has(again, "first", false)
	c.close(again)
	c.remove(vm)
	if err := c.drv().Discard(c.context(), snap); err != nil {
		c.t.Fatal(err)
	}
	c.nothing(vm, child)
}
