package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/testkit"
)

var background = context.Background()

func (w *world) remove(n int) {
	w.t.Helper()
	if err := w.mgr.Remove(background, n); err != nil {
		w.t.Fatal(err)
	}
}

// inventory is everything on the machine that a slot could leave behind.
func (w *world) inventory() []string {
	w.t.Helper()
	var all []string
	for _, o := range w.objects() {
		all = append(all, fmt.Sprintf("%s %s", o.Kind, o.Name))
	}
	links, err := dumped(w.host.links.LinkList)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, l := range links {
		all = append(all, "link "+l.Attrs().Name)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, "/fuse-"+w.mgr.tag) {
			all = append(all, "mount "+strings.Fields(line)[4])
		}
	}
	for line := range strings.Lines(w.host.nft("")) {
		all = append(all, "rule "+line)
	}
	slices.Sort(all)
	return all
}

func TestCyclesLeaveNothing(t *testing.T) {
	w := newWorld(t, MTU)
	w.slot(0) // what is made once is made now
	w.remove(0)
	before := w.inventory()
	testkit.Leaks(t)
	for i := range testkit.Count(50, 2000) {
		s := w.slot(i % 8)
		tap, err := s.Tap()
		if err != nil {
			t.Fatal(err)
		}
		if err := tap.Close(); err != nil {
			t.Fatal(err)
		}
		w.remove(i % 8)
	}
	if diff := cmp.Diff(before, w.inventory()); diff != "" {
		t.Error(diff)
	}
}

func TestRemoveIsIdempotent(t *testing.T) {
	w := newWorld(t, MTU)
	w.remove(5)
	w.slot(5)
	w.remove(5)
	w.remove(5)
	if _, err := w.mgr.Slot(5); !errors.Is(err, ErrNoSlot) {
		t.Errorf("Slot after Remove: %v, want ErrNoSlot", err)
	}
}

var steps = []string{"namespace", "settings", "rules", "tap", "veth", "uplink"}

func TestEveryStepIsUndone(t *testing.T) {
	w := newWorld(t, MTU)
	before := w.inventory()
	boom := errors.New("boom")
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			reached := false
			w.mgr.failStep = func(name string) error {
				if name != step {
					return nil
				}
				reached = true
				return boom
			}
			_, err := w.mgr.Create(background, 1)
			if !errors.Is(err, boom) || !reached {
				t.Errorf("err = %v, reached = %v", err, reached)
			}
			if diff := cmp.Diff(before, w.inventory()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A process that is killed leaves a slot as far as it got.
func TestHalfMadeSlots(t *testing.T) {
	w := newWorld(t, MTU)
	before := w.inventory()
	killed := errors.New("killed")
	die := func(t *testing.T, step string) {
		t.Helper()
		w.mgr.failStep = func(name string) error {
			if name == step {
				return killed
			}
			return nil
		}
		if err := inFresh(func() error { return w.mgr.build(background, 1) }); step != "" && !errors.Is(err, killed) {
			t.Fatal(err)
		}
		w.mgr.failStep = nil
	}
	for _, step := range append(slices.Clone(steps), "") {
		t.Run("removed after "+step, func(t *testing.T) {
			die(t, step)
			objects, err := w.mgr.List()
			if err != nil {
				t.Fatal(err)
			}
			if step != "namespace" && !slices.Contains(objects, Object{Kind: "netns", Name: w.mgr.nsName(1), Slot: 1}) {
				t.Errorf("List does not show it: %v", objects)
			}
			w.remove(1)
			if diff := cmp.Diff(before, w.inventory()); diff != "" {
				t.Error(diff)
			}
		})
		t.Run("made anew after "+step, func(t *testing.T) {
			die(t, step)
			s := w.slot(1)
			if step == "uplink" {
				if _, err := s.Tap(); err != nil {
					t.Error(err)
				}
			}
			w.remove(1)
			if diff := cmp.Diff(before, w.inventory()); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("a file without a namespace", func(t *testing.T) {
		if err := os.WriteFile(filepath.Join(nsDir, w.mgr.nsName(1)), nil, 0o400); err != nil {
			t.Fatal(err)
		}
		if _, err := w.mgr.Slot(1); !errors.Is(err, ErrNoSlot) {
			t.Errorf("Slot: %v, want ErrNoSlot", err)
		}
		w.slot(1)
		w.remove(1)
		if diff := cmp.Diff(before, w.inventory()); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("a link without a namespace", func(t *testing.T) {
		s := w.slot(1)
		tap, err := s.Tap() // keeps the namespace alive
		if err != nil {
			t.Fatal(err)
		}
		defer tap.Close()
		w.remove(1)
		objects, err := w.mgr.List()
		if err != nil || !slices.Contains(objects, Object{Kind: "veth", Name: w.mgr.linkName(1), Slot: 1}) {
			t.Fatalf("List: %v, %v; want the link", objects, err)
		}
		w.remove(1)
		if diff := cmp.Diff(before, w.inventory()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestASlotInUseIsNotReplaced(t *testing.T) {
	w := newWorld(t, MTU)
	s, g := w.guest(2)
	w.internet.udp(public+":9", "ok")
	if _, err := w.mgr.Create(background, 2); !errors.Is(err, ErrBusy) {
		t.Errorf("Create: %v, want ErrBusy", err)
	}
	if _, err := s.Tap(); !errors.Is(err, ErrBusy) {
		t.Errorf("Tap: %v, want ErrBusy", err)
	}
	if got, err := g.ask("udp", public+":9"); err != nil {
		t.Errorf("the guest is cut off: %q, %v", got, err)
	}
}

func TestSlotsAtOnce(t *testing.T) {
	w := newWorld(t, MTU)
	before := w.inventory()
	const n = 16
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			// Two callers for each slot: they wait for each other.
			_, errs[i] = w.mgr.Create(background, i/2)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for i := range n / 2 {
		if _, err := w.mgr.Slot(i); err != nil {
			t.Error(err)
		}
	}
	for i := range n {
		wg.Go(func() { errs[i] = w.mgr.Remove(background, i/2) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, w.inventory()); diff != "" {
		t.Error(diff)
	}
}

func TestWaitingForASlotHonoursTheContext(t *testing.T) {
	w := newWorld(t, MTU)
	unlock, err := w.mgr.locks.lock(background, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(background)
	cancel()
	if _, err := w.mgr.Create(ctx, 3); !errors.Is(err, context.Canceled) {
		t.Errorf("Create: %v", err)
	}
	if err := w.mgr.Remove(ctx, 3); !errors.Is(err, context.Canceled) {
		t.Errorf("Remove: %v", err)
	}
	if _, err := w.mgr.Create(ctx, 4); !errors.Is(err, context.Canceled) {
		t.Errorf("Create of a free slot: %v", err)
	}
}

func TestRestartFindsItsSlots(t *testing.T) {
	w := newWorld(t, MTU)
	_, g := w.guest(0)
	w.internet.listen(public+":80", "web")
	c, err := g.dial("tcp", "", public+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	second := w.manager() // replaces the table under the open connection
	if second.pool != w.mgr.pool {
		t.Errorf("pool %s, was %s", second.pool, w.mgr.pool)
	}
	s, err := second.Slot(0)
	if err != nil {
		t.Fatal(err)
	}
	g.listen("10.9.0.2:9550", "fused")
	conn, err := s.Dial(background, "tcp", "10.9.0.2:9550")
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()

	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "still here"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, len("web\nstill here"))
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "web\nstill here" {
		t.Errorf("the open connection: %q, %v", buf, err)
	}
}

func TestOtherRegistriesAreInvisible(t *testing.T) {
	w := newWorld(t, MTU)
	w.slot(0)
	other, err := New(Config{Registry: w.registry + " other", HostNS: w.host.path(), Resolvers: publicResolvers})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if other.pool.Overlaps(w.mgr.pool.Prefix) {
		t.Errorf("pools overlap: %s and %s", other.pool, w.mgr.pool)
	}
	if _, err := other.Create(background, 0); err != nil {
		t.Fatal(err)
	}
	objects, err := other.List()
	if err != nil {
		t.Fatal(err)
	}
	if len(objects) != 3 {
		t.Errorf("objects = %v, want netns, veth and table of its own", objects)
	}
	if err := other.Uninstall(background); err != nil {
		t.Fatal(err)
	}
	if _, err := w.mgr.Slot(0); err != nil {
		t.Errorf("removed with the other's: %v", err)
	}
}

func TestAListIsWhole(t *testing.T) {
	asked := 0
	list := func() ([]int, error) {
		if asked++; asked%3 != 0 {
			return []int{1}, netlink.ErrDumpInterrupted
		}
		return []int{1, 2}, nil
	}
	if got, err := dumped(list); err != nil || len(got) != 2 || asked != 3 {
		t.Errorf("%v, %v, asked %d times", got, err, asked)
	}
	never := func() ([]int, error) { return nil, netlink.ErrDumpInterrupted }
	if _, err := dumped(never); !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Errorf("one that is never whole: %v", err)
	}
}

func TestSlotNumbersAreChecked(t *testing.T) {
	w := newWorld(t, MTU)
	for _, n := range []int{-1, w.mgr.Slots()} {
		if _, err := w.mgr.Create(background, n); err == nil || !strings.Contains(err.Error(), "between 0 and 1023") {
			t.Errorf("Create(%d): %v", n, err)
		}
		if err := w.mgr.Remove(background, n); err == nil {
			t.Errorf("Remove(%d): no error", n)
		}
		if _, err := w.mgr.Slot(n); err == nil {
			t.Errorf("Slot(%d): no error", n)
		}
	}
	s := w.slot(1023)
	if got, want := s.UplinkAddr(), w.mgr.pool.Addr(); s.HostAddr() != got.Prev() || !w.mgr.pool.Contains(got.Next()) || got.Compare(want) < 0 {
		t.Errorf("addresses of the last slot: %s, %s in %s", s.HostAddr(), got, w.mgr.pool)
	}
}

// The first `ip netns add` on a machine mounts the directory over itself if it
// is not a mount yet, and hides what was mounted in it.
func TestDirectoryIsAsIproute2WantsIt(t *testing.T) {
	dir := t.TempDir()
	wants := func() error { return unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, "") }
	if err := wants(); !errors.Is(err, unix.EINVAL) {
		t.Fatalf("control: %v, want EINVAL for a plain directory", err)
	}
	for range 2 {
		if err := prepareDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
		if err := unix.Unmount(dir, 0); !errors.Is(err, unix.EINVAL) {
			t.Errorf("mounted twice: %v", err)
		}
	}()
	path := filepath.Join(dir, "ns")
	if err := inFresh(func() error { return bind(path) }); err != nil {
		t.Fatal(err)
	}
	if err := wants(); err != nil {
		t.Errorf("iproute2 would mount over it: %v", err)
	}
	if there, err := unbind(path); err != nil || !there {
		t.Errorf("unbind: %v, %v", there, err)
	}
}

func BenchmarkCreateRemove(b *testing.B) {
	w := newWorld(b, MTU)
	i := 0
	for b.Loop() {
		w.slot(i % 1000)
		w.remove(i % 1000)
		i++
	}
	w.objects()
}

func BenchmarkDial(b *testing.B) {
	w := newWorld(b, MTU)
	s, g := w.guest(0)
	g.listen("10.9.0.2:9550", "")
	for b.Loop() {
		c, err := s.Dial(background, "tcp", "10.9.0.2:9550")
		if err != nil {
			b.Fatal(err)
		}
		c.Close()
	}
}

// A child has every descriptor of its parent until its program starts: a tap
// that is just being made, too.
func TestATapIsFreeHoweverManyProgramsStart(t *testing.T) {
	w := newWorld(t, MTU)
	ctx, stop := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	defer starting.Wait()
	defer stop()
	for range 4 {
		starting.Go(func() {
			for ctx.Err() == nil {
				if err := exec.Command("/bin/true").Run(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range testkit.Count(40, 400) {
		s, err := w.mgr.Create(background, 1)
		if err != nil {
			t.Fatalf("create %d: %v", i, err)
		}
		tap, err := s.Tap()
		if err != nil {
			t.Fatalf("tap %d: %v", i, err)
		}
		if err := errors.Join(tap.Close(), w.mgr.Remove(background, 1)); err != nil {
			t.Fatal(err)
		}
	}
}
