package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/capture/memory"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/vmm/record"
	"github.com/fusevm/fuse/internal/testkit"
)

// kill ends a process as an accident would, and waits until it has ended.
func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, testWithin, "the process ends", func() bool {
		_, err := proc.StartTime(pid)
		return err != nil
	})
}

// named is the process of the bench's registry that bears a name.
func (b *bench) named(name string) int {
	b.t.Helper()
	found, err := proc.Named("fuse-" + b.registry + "-" + name)
	if err != nil {
		b.t.Fatal(err)
	}
	for pid, rest := range found {
		if rest == "" {
			return pid
		}
	}
	b.t.Fatalf("no process is named %s", name)
	return 0
}

// unhurt fails the test unless the machine answers and nothing is left of a
// capture.
func (b *bench) unhurt(inst driver.Instance, a driver.Artifact, with []string) {
	b.t.Helper()
	if got := b.sh(inst, "echo $((6*7))"); got != "42" {
		b.t.Errorf("the source says %q", got)
	}
	left, err := os.ReadDir(a.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) || len(left) > 0 {
		b.t.Errorf("left of the capture: %v, %v", left, err)
	}
	if got := inventory(b.t, b.registry); !slices.Equal(got, with) {
		b.t.Errorf("the host has %q and had %q", got, with)
	}
}

func TestCapturesThatFailHurtNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{})
	vm := b.vm()
	inst, err := b.start(vm)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { b.end(inst, vm) }()
	with := inventory(t, b.registry)
	at := func(step string, do func()) func(string) {
		return func(s string) {
			if s == step {
				do()
			}
		}
	}
	for _, step := range []string{"freeze", "copy", "devices"} { // the template dies
		a := b.artifact()
		_, err := b.d.Snapshot(t.Context(), vm, driver.SnapshotRequest{To: a, Live: true, Step: at(step, func() { kill(t, b.named("capture."+a.ID)) })})
		if err == nil {
			t.Errorf("%s: taken without a template", step)
		}
		b.unhurt(inst, a, with)
	}

	inst, with = b.pausedAfterwards(vm)

	full := b.artifact() // of the disk that the memory is written to
	if err := errors.Join(os.MkdirAll(full.Dir, 0o700), unix.Mount("tmpfs", full.Dir, "tmpfs", 0, "size=4m")); err != nil {
		t.Fatal(err)
	}
	_, err = b.d.Snapshot(t.Context(), vm, driver.SnapshotRequest{To: full, Live: true})
	b.unhurt(inst, full, with)
	testkit.Eventually(t, testWithin, "nobody has a file there", func() bool { return unix.Unmount(full.Dir, 0) == nil })
	if !errors.Is(err, fleet.ErrNoCapacity) {
		t.Errorf("on a full disk: %v", err)
	}

	b.holders(vm, inst)

	a := b.artifact() // the machine itself dies
	_, err = b.d.Snapshot(t.Context(), vm, driver.SnapshotRequest{To: a, Live: true, Step: at("copy", func() { kill(t, b.named(vm.UID)) })})
	if !errors.Is(err, fleet.ErrVMNotRunning) {
		t.Errorf("of a machine that died: %v", err)
	}
	<-inst.Done()
	if left, err := os.ReadDir(a.Dir); err == nil && len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// pausedAfterwards lets a machine stand still and go on after a capture whose
// template died while it took the memory: QEMU has that protected then.
func (b *bench) pausedAfterwards(vm driver.VM) (driver.Instance, []string) {
	b.t.Helper()
	a := b.artifact()
	_, err := b.d.Snapshot(context.Background(), vm, driver.SnapshotRequest{To: a, Live: true, Step: func(step string) {
		if step == "copy" {
			kill(b.t.(*testing.T), b.named("capture."+a.ID))
		}
	}})
	if err == nil {
		b.t.Error("taken without a template")
	}
	if _, err := b.d.Pause(context.Background(), vm, nil); err != nil {
		b.t.Fatalf("a pause after a capture that broke off: %v", err)
	}
	r, err := b.d.Resume(context.Background(), vm, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	b.thaw(vm, r, fleet.ThawResume)
	if got := b.sh(r.Instance, "echo $((6*7))"); got != "42" {
		b.t.Errorf("the machine says %q", got)
	}
	return r.Instance, inventory(b.t, b.registry)
}

// holders ends those of two captures: one has a file to be loaded from, the
// other is lost.
func (b *bench) holders(vm driver.VM, inst driver.Instance) {
	t := b.t.(*testing.T)
	t.Helper()
	for _, volatile := range []bool{false, true} {
		a := b.artifact()
		if _, err := b.d.Snapshot(t.Context(), vm, driver.SnapshotRequest{To: a, Live: true, Volatile: volatile}); err != nil {
			t.Fatal(err)
		}
		if held, err := b.d.Held(t.Context()); err != nil || held[a.ID] < 1<<20 {
			t.Errorf("held: %v, %v", held, err)
		}
		kill(t, b.named("hold."+a.ID))
		child := b.vm()
		r, err := b.d.Fork(t.Context(), child, b.identity(child), a, nil)
		var damaged *driver.DamagedError
		switch {
		case volatile:
			if !errors.As(err, &damaged) {
				t.Errorf("of memory that is lost: %v", err)
			}
			if _, err := b.d.Inspect(t.Context(), a, false); !errors.As(err, &damaged) {
				t.Errorf("later: %v", err)
			}
		case err != nil:
			t.Errorf("of memory that is on the disk: %v", err)
		default:
			b.thaw(child, r, fleet.ThawFork)
			if got := b.sh(r.Instance, "hostname"); got != child.ID {
				t.Errorf("the fork is %s", got)
			}
			b.end(r.Instance, child)
			f, _, err := memory.Held(b.d.reaper.Prefix + "hold." + a.ID)
			if err != nil {
				t.Error(err)
			} else if err := errors.Join(memory.CheckSealed(f, int64(vm.RamMB)<<20), f.Close()); err != nil {
				t.Error(err)
			}
		}
		if rep, err := b.d.SweepSnapshots(t.Context(), []driver.Artifact{a}); err != nil || len(rep.Removed) > 0 && !volatile {
			t.Errorf("a sweep beside it: %+v, %v", rep, err)
		}
		if err := b.d.Discard(t.Context(), a); err != nil {
			t.Error(err)
		}
		if held, err := b.d.Held(t.Context()); err != nil || len(held) > 0 {
			t.Errorf("held: %v, %v", held, err)
		}
	}
	if got := b.sh(inst, "echo hello"); got != "hello" {
		t.Errorf("the source says %q", got)
	}
}

// TestAnAgentThatDiesAtAStepHurtsNobody lets the program end, as far as a VM can
// see, at each step of each verb: what is found by the next one is what was
// before.
func TestAnAgentThatDiesAtAStepHurtsNobody(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{})
	vm := b.vm()
	inst, err := b.start(vm)
	if err != nil {
		t.Fatal(err)
	}
	b.sh(inst, "echo word > /root/word; sync")
	snap := b.artifact()
	if _, err := b.d.Snapshot(t.Context(), vm, driver.SnapshotRequest{To: snap, Live: true}); err != nil {
		t.Fatal(err)
	}
	with := inventory(t, b.registry)
	all := testkit.Count(0, 1) == 1
	for _, v := range []struct {
		verb  string
		steps []string // of an ordinary run
		call  func(step func(string), a driver.Artifact)
	}{
		{"snapshot", []string{"freeze", "release", "memory"}, func(step func(string), a driver.Artifact) {
			_, _ = b.d.Snapshot(context.Background(), vm, driver.SnapshotRequest{To: a, Live: true, Step: step})
		}},
		{"disk snapshot", []string{"release"}, func(step func(string), a driver.Artifact) {
			_, _ = b.d.Snapshot(context.Background(), vm, driver.SnapshotRequest{To: a, Step: step})
		}},
		{"restore", []string{"resume"}, func(step func(string), _ driver.Artifact) { _, _ = b.d.Restore(context.Background(), vm, snap, step) }},
		{"pause", []string{"copy", "pause"}, func(step func(string), _ driver.Artifact) { _, _ = b.d.Pause(context.Background(), vm, step) }},
	} {
		seen := map[string]bool{}
		for n := 0; ; n++ {
			a := b.artifact()
			died := dieAt(func(step func(string)) { v.call(step, a) }, func(s string) bool {
				if seen[s] || !all && !slices.Contains(v.steps, s) {
					return false
				}
				seen[s] = true
				return true
			})
			if died == "" {
				t.Fatalf("%s ended well", v.verb)
			}
			inst = b.takenOver(vm, inst, a, []driver.Artifact{snap}, with, v.verb+" at "+died)
			if !all && len(seen) == len(v.steps) || all && (died == "record" || died == "pause" || died == "resume") {
				break
			}
		}
	}
	inst = b.pausedAgentDies(vm, inst)
	b.end(inst, vm)
	if err := b.d.Discard(t.Context(), snap); err != nil {
		t.Error(err)
	}
}

// dieAt runs something in a goroutine that ends without another word at the
// first step that die says yes to.
func dieAt(run func(step func(string)), die func(string) bool) (died string) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(func(s string) {
			if die(s) {
				died = s
				runtime.Goexit()
			}
		})
	}()
	<-done
	return died
}

// takenOver opens another driver, which takes hold of the VM and sweeps.
func (b *bench) takenOver(vm driver.VM, old driver.Instance, a driver.Artifact, known []driver.Artifact, with []string, what string) driver.Instance {
	b.t.Helper()
	b.reopen(old)
	inst, err := b.d.Adopt(context.Background(), vm)
	if err != nil {
		b.t.Fatalf("%s: adopt: %v", what, err)
	}
	if got := b.sh(inst, "cat /root/word"); got != "word" {
		b.t.Errorf("%s: the machine says %q", what, got)
	}
	if _, err := b.d.SweepSnapshots(context.Background(), known); err != nil {
		b.t.Errorf("%s: %v", what, err)
	}
	if err := b.d.Discard(context.Background(), a); err != nil {
		b.t.Errorf("%s: %v", what, err)
	}
	b.unhurt(inst, a, with)
	rec, err := record.Read[processRecord](vm.Dir, fileProcess)
	if err != nil || rec.Disk.Pending != 0 || rec.Paused {
		b.t.Errorf("%s: recorded %+v, %v", what, rec, err)
	}
	entries, err := os.ReadDir(vm.Dir)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, "disk") && !rec.Disk.Has(name) || strings.HasPrefix(name, "qmp") && name != rec.socket() || name == dirPaused {
			b.t.Errorf("%s: %s is left in the VM's directory", what, name)
		}
	}
	return inst
}

// reopen gives the bench another driver. The old one's connections end.
func (b *bench) reopen(held driver.Instance) {
	b.t.Helper()
	b.d.mu.Lock()
	all := []driver.Instance{held}
	for _, i := range b.d.held { // of a program that has died, none would notice anything
		if i != held {
			all = append(all, i)
		}
	}
	b.d.mu.Unlock()
	for _, i := range all {
		if i == nil {
			continue
		}
		if err := i.Close(); err != nil {
			b.t.Error(err)
		}
	}
	if err := b.d.Close(); err != nil {
		b.t.Error(err)
	}
	b.d = newDriver(b.t, Config{Dir: b.dir, Registry: b.registry})
}

// pausedAgentDies lets the program end while a paused VM is brought back.
func (b *bench) pausedAgentDies(vm driver.VM, inst driver.Instance) driver.Instance {
	b.t.Helper()
	if _, err := b.d.Pause(context.Background(), vm, nil); err != nil {
		b.t.Fatal(err)
	}
	for _, step := range []string{"process", "resume"} {
		died := dieAt(func(told func(string)) { _, _ = b.d.Resume(context.Background(), vm, told) }, func(s string) bool { return s == step })
		if died != step {
			b.t.Fatalf("the resume did not come to %s", step)
		}
		b.reopen(nil)
		var paused *driver.PausedError
		if _, err := b.d.Adopt(context.Background(), vm); !errors.As(err, &paused) {
			b.t.Fatalf("adopting after %s: %v", step, err)
		}
		if pids, err := b.d.reaper.Processes(vm.UID); err != nil || len(pids) > 0 {
			b.t.Errorf("a paused VM has the processes %v, %v", pids, err)
		}
	}
	r, err := b.d.Resume(context.Background(), vm, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	b.thaw(vm, r, fleet.ThawResume)
	if got := b.sh(r.Instance, "cat /root/word"); got != "word" {
		b.t.Errorf("the machine says %q", got)
	}
	return r.Instance
}

// TestLayersAreMadeOne takes more captures than a disk may have layers; the
// guest's files and the earliest capture stay what they were.
func TestLayersAreMadeOne(t *testing.T) {
	t.Parallel()
	b := newBench(t, Config{})
	vm := b.vm()
	inst, err := b.start(vm)
	if err != nil {
		t.Fatal(err)
	}
	defer b.end(inst, vm)
	var first driver.Artifact
	for n := range 10 {
		b.sh(inst, fmt.Sprintf("dd if=/dev/urandom of=/root/f%d bs=64k count=4 2>/dev/null; cd /root; md5sum f* > sums; sync", n))
		a := b.artifact()
		if _, err := b.d.Snapshot(t.Context(), vm, driver.SnapshotRequest{To: a}); err != nil {
			t.Fatalf("snapshot %d: %v", n, err)
		}
		if n == 0 {
			first = a
			continue
		}
		if err := b.d.Discard(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	rec, err := record.Read[processRecord](vm.Dir, fileProcess)
	if err != nil || len(rec.Disk.Layers) > 8 || len(rec.Disk.Layers) < 1 {
		t.Errorf("the disk is %+v, %v", rec.Disk, err)
	}
	disks, err := filepath.Glob(filepath.Join(vm.Dir, "disk*.qcow2"))
	if err != nil || len(disks) != len(rec.Disk.Numbers()) {
		t.Errorf("the files are %q, %v", disks, err)
	}
	b.sh(inst, "echo 3 > /proc/sys/vm/drop_caches; cd /root; md5sum -c sums")
	info, err := b.d.Inspect(t.Context(), first, true)
	if err != nil || info.Layers != 1 {
		t.Errorf("the first one is %+v, %v", info, err)
	}
}
