package golden

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

// bench is a driver whose machines are nothing.
type bench struct {
	driver.Driver
	driver.Snapshotter

	mu     sync.Mutex
	kernel string
	boots  int
	// rehearsed counts first commands.
	rehearsed int
	removed   int
	fail      error
	stuck     error // of removals
	boot      time.Duration
	remove    time.Duration
	held      map[string]int64
}

func (b *bench) Shape(_ context.Context, vm driver.VM) (driver.Shape, int, bool, error) {
	return shape(vm.Image, b.kernel, vm.RamMB), 2, !vm.HugePages, nil
}

func (b *bench) Start(ctx context.Context, _ driver.VM, _ driver.Identity, _ func(string)) (driver.Instance, error) {
	select {
	case <-time.After(b.boot):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.boots++
	return instance{b: b}, b.fail
}

func (b *bench) Remove(context.Context, driver.VM) error {
	<-time.After(b.remove)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removed++
	return nil
}

func (b *bench) Snapshot(_ context.Context, _ driver.VM, req driver.SnapshotRequest) (driver.SnapshotInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held[req.To.ID] = 100
	return driver.SnapshotInfo{Kind: fleet.SnapshotKindLive, SizeBytes: 1000}, os.WriteFile(filepath.Join(req.To.Dir, "memory"), nil, 0o600)
}

func (b *bench) Discard(_ context.Context, a driver.Artifact) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.held, a.ID)
	return b.stuck
}

func (b *bench) Held(context.Context) (map[string]int64, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]int64{}
	for id, n := range b.held {
		out[id] = n
	}
	return out, nil
}

func (b *bench) Unload(ctx context.Context, a driver.Artifact) error { return b.Discard(ctx, a) }

func (b *bench) Needs(context.Context, driver.VM) (int64, error) { return 0, nil }

func (b *bench) booted() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.boots
}

type instance struct {
	driver.Instance

	b *bench
}

func (instance) Close() error { return nil }

func (i instance) Guest() driver.Guest { return audience{b: i.b} }

// audience is a guest without a shell.
type audience struct {
	driver.Guest

	b *bench
}

func (r audience) Exec(_ context.Context, spec fleet.ExecSpec, _ fleet.Stdio) (fleet.ExecStatus, error) {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	if spec.Timeout > 0 && spec.Timeout < makeLimit/2 { // or a shell that waits would keep the capture from being made
		r.b.rehearsed++
	}
	return fleet.ExecStatus{}, fleet.Errorf(fleet.CodeNotFound, "no shell")
}

func openKeeper(t *testing.T, dir string, b *bench, disk, ram int64) *Keeper {
	t.Helper()
	k, err := Open(Config{
		Dir: dir, Driver: b, Disk: disk, RAM: ram, Log: slog.New(slog.DiscardHandler), Identity: Nobody,
		Room: func(_ context.Context, vm driver.VM) (driver.VM, func(), error) {
			vm.Dir = filepath.Join(dir, Lent, vm.UID)
			return vm, func() {}, os.MkdirAll(vm.Dir, 0o700)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// ask does as a create does: what is not there is wanted once a machine runs.
func ask(k *Keeper, vm driver.VM) (Found, bool) {
	f, ok := k.Find(context.Background(), vm)
	if !ok {
		k.Want(context.Background(), vm)
	}
	return f, ok
}

var vmA = driver.VM{CPUs: 1, RamMB: 256, StorageGB: 3, Image: "a"}

func TestOneCaptureForAShape(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{kernel: "k1", boot: time.Second, held: map[string]int64{}}
		dir := t.TempDir()
		k := openKeeper(t, dir, b, 1<<20, 1<<20)
		for range 5 { // many creates of a shape have one made
			if _, ok := ask(k, vmA); ok {
				t.Fatal("found before it was made")
			}
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		if n := b.booted(); n != 1 || b.rehearsed != 1 || b.removed != 1 {
			t.Errorf("%d machines of nobody were booted, %d ran a first command, %d removed", n, b.rehearsed, b.removed)
		}
		f, ok := ask(k, vmA)
		if !ok || f.Grow {
			t.Fatal("not found, or not with the disk of the first that wanted it")
		}
		large := vmA
		large.StorageGB = 9
		if g, ok := ask(k, large); !ok || !g.Grow {
			t.Error("a larger disk is not grown")
		} else {
			g.Release(nil)
		}
		// One that wants less has another made, once nobody uses this one.
		tiny := vmA
		tiny.StorageGB = 2
		if _, ok := ask(k, tiny); ok {
			t.Error("found for a disk that is too small")
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		if _, ok := ask(k, tiny); ok || b.booted() != 1 {
			t.Error("made anew while it was in use")
		}
		f.Release(nil)
		if _, ok := ask(k, tiny); ok {
			t.Error("found for a disk that is too small")
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		if f, ok = ask(k, tiny); !ok || f.Grow || b.booted() != 2 {
			t.Fatal("not made anew for a smaller disk")
		}
		f.Release(nil)
		if f, ok = ask(k, vmA); !ok || !f.Grow {
			t.Fatal("the first shape's disk is not grown")
		}
		f.Release(nil)
		tiny.StorageGB = 1 // less than the image takes
		if _, ok := ask(k, tiny); ok {
			t.Error("found for a disk that is too small")
		}
		k.Close()
		if len(b.held) != 0 {
			t.Error("memory is held after the end")
		}
		// It is there after a restart, and goes when another kernel's is made.
		k = openKeeper(t, dir, b, 1<<20, 1<<20)
		f, ok = ask(k, vmA)
		if !ok {
			t.Fatal("lost over a restart")
		}
		f.Release(nil)
		old := f.Artifact.Dir
		b.kernel = "k2"
		if _, ok := ask(k, vmA); ok {
			t.Error("found for another kernel")
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) || k.Bytes() != 1000 {
			t.Errorf("the old kernel's is still there: %v, %d bytes", err, k.Bytes())
		}
		k.Close()
	})
}

func TestWhatDoesNotWorkOutIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{kernel: "k1", held: map[string]int64{}, fail: errors.New("no")}
		k := openKeeper(t, t.TempDir(), b, 1<<20, 0)
		defer k.Close()
		find := func() bool {
			f, ok := ask(k, vmA)
			<-time.After(time.Second)
			synctest.Wait()
			if ok {
				f.Release(nil)
			}
			return ok
		}
		find()
		find()
		if n := b.booted(); n != 1 {
			t.Errorf("%d tries at once after one that failed", n)
		}
		<-time.After(retryAfter)
		b.fail = nil
		find()
		if !find() || b.booted() != 2 {
			t.Errorf("not made after a while: %d tries", b.booted())
		}
		// One that proves broken is dropped and left alone as well.
		f, ok := ask(k, vmA)
		if !ok {
			t.Fatal("gone")
		}
		f.Release(errors.New("broken"))
		if find() || b.booted() != 2 || k.Bytes() != 0 {
			t.Errorf("%d boots, %d bytes", b.booted(), k.Bytes())
		}
		// What is larger than all that is allowed is not made over and over.
		small := openKeeper(t, t.TempDir(), b, 10, 0)
		defer small.Close()
		for range 3 {
			if _, ok := ask(small, vmA); ok {
				t.Error("one over the bound is kept")
			}
			<-time.After(time.Second)
			synctest.Wait()
		}
		if b.booted() != 3 {
			t.Errorf("%d boots", b.booted())
		}
	})
}

// One that proves broken while the machine that it was made of is being removed
// is not made again at once either.
func TestOneThatIsBrokenAtOnceIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{kernel: "k1", remove: time.Minute, held: map[string]int64{}}
		k := openKeeper(t, t.TempDir(), b, 1<<20, 1<<20)
		defer k.Close()
		_, _ = ask(k, vmA)
		<-time.After(time.Second)
		synctest.Wait()
		f, ok := ask(k, vmA)
		if !ok {
			t.Fatal("not found while its machine is removed")
		}
		f.Release(errors.New("broken"))
		<-time.After(2 * time.Minute)
		synctest.Wait()
		_, ok = ask(k, vmA)
		<-time.After(time.Second)
		synctest.Wait()
		if ok || b.booted() != 1 {
			t.Errorf("found: %v, %d boots", ok, b.booted())
		}
		<-time.After(retryAfter)
		_, _ = ask(k, vmA)
		<-time.After(2 * time.Minute)
		synctest.Wait()
		if f, ok = ask(k, vmA); !ok || b.booted() != 2 {
			t.Fatalf("after a while: found %v, %d boots", ok, b.booted())
		}
		f.Release(nil)
	})
}

func TestAMachineOfNobodyYields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{kernel: "k1", boot: time.Minute, held: map[string]int64{}}
		k := openKeeper(t, t.TempDir(), b, 1<<20, 1<<20)
		if k.Yield(t.Context()) {
			t.Error("nothing was being made")
		}
		_, _ = ask(k, vmA)
		<-time.After(time.Second)
		if !k.Yield(t.Context()) || b.removed != 1 {
			t.Error("it did not yield")
		}
		synctest.Wait()
		_, _ = ask(k, vmA) // asks for it again
		<-time.After(2 * time.Minute)
		synctest.Wait()
		f, ok := ask(k, vmA)
		if !ok {
			t.Fatal("not made after it had yielded")
		}
		f.Release(nil)
		k.Close()
		var none *Keeper
		if none.Yield(t.Context()) || none.Bytes() != 0 {
			t.Error("a host without golden snapshots")
		}
	})
}

// A capture stays until the one that takes its place is there, and counts as long
// as it is on the disk.
func TestACaptureStaysUntilTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bench{kernel: "k1", boot: time.Second, held: map[string]int64{}}
		dir := t.TempDir()
		k := openKeeper(t, dir, b, 1<<20, 1<<20)
		tiny := vmA
		tiny.StorageGB = 2
		settled := func(vm driver.VM) (Found, bool) {
			f, ok := ask(k, vm)
			<-time.After(2 * time.Second)
			synctest.Wait()
			return f, ok
		}
		_, _ = settled(vmA)
		b.fail = errors.New("no room")
		if _, ok := settled(tiny); ok {
			t.Fatal("found for a disk that is too small")
		}
		f, ok := settled(vmA)
		if !ok || k.Bytes() != 1000 || b.booted() != 2 {
			t.Fatalf("a capture was lost to one that was not made: %v, %d bytes, %d boots", ok, k.Bytes(), b.booted())
		}
		f.Release(nil)
		<-time.After(retryAfter)
		b.fail, b.stuck = nil, errors.New("busy")
		if _, ok := settled(tiny); ok {
			t.Fatal("found for a disk that is too small")
		}
		if f, ok = settled(tiny); !ok || f.Artifact.Dir == "" || k.Bytes() <= 1000 || len(k.Artifacts()) != 2 {
			t.Errorf("what could not be removed does not count: %d bytes, %v", k.Bytes(), k.Artifacts())
		}
		b.stuck = nil
		f.Release(nil)
		other := vmA
		other.RamMB *= 2
		_, _ = settled(other) // the next one clears up
		if k.Bytes() != 2000 || len(k.Artifacts()) != 2 {
			t.Errorf("%d bytes, %v", k.Bytes(), k.Artifacts())
		}
		k.Close()
		k = openKeeper(t, dir, b, 1<<20, 1<<20)
		if f, ok = settled(tiny); !ok || k.Bytes() != 2000 {
			t.Errorf("after a restart: %v, %d bytes", ok, k.Bytes())
		} else {
			f.Release(nil)
		}
		k.Close()
	})
}
