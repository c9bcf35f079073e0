package qemu

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/guestmem"
	"github.com/fusevm/fuse/internal/testkit"
)

// reservePages has the kernel set so many huge pages aside beside those there
// are, until the test ends. Memory that is in small pieces just now is put together
// meanwhile.
func reservePages(t *testing.T, n int) {
	t.Helper()
	const file = "/proc/sys/vm/nr_hugepages"
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	was, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	set := func(n int) {
		if err := os.WriteFile(file, []byte(strconv.Itoa(n)), 0o600); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { set(was) })
	testkit.Eventually(t, testWithin, "there are the huge pages", func() bool {
		set(was + n)
		if now, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(now)) == strconv.Itoa(was+n) {
			return true
		}
		_ = os.WriteFile("/proc/sys/vm/compact_memory", []byte("1"), 0o600) // a kernel without it does so by itself
		return false
	})
}

func freePages(t *testing.T) int {
	t.Helper()
	m, err := guestmem.Read()
	if err != nil {
		t.Fatal(err)
	}
	return m.FreeHuge
}

// A guest that finds too few huge pages is refused as want of room; one that
// finds enough has all of them from the start and gives them back.
func TestHugePages(t *testing.T) {
	b := newBench(t, Config{})
	reservePages(t, 140)
	free := freePages(t)
	more := b.vm()
	more.HugePages, more.RamMB = true, free*fleet.HugePageMB+256
	fe := b.refused(more, fleet.CodeUnavailable, stepProcess, "huge pages")
	if !errors.Is(fe, fleet.ErrNoCapacity) || fe.Details[fleet.DetailRemedy] == "" {
		t.Errorf("got %v with %v", fe, fe.Details)
	}
	// The kernel takes them back a moment after a process that is looked at ends.
	back := func() {
		t.Helper()
		testkit.Eventually(t, testWithin, "all pages are free again", func() bool { return freePages(t) == free })
	}
	back()
	vm := b.vm()
	vm.HugePages = true
	inst, err := b.start(vm)
	if err != nil {
		t.Fatal(err)
	}
	took := free - freePages(t)
	if err := errors.Join(inst.Close(), b.d.Remove(context.Background(), vm)); err != nil {
		t.Fatal(err)
	}
	if took != vm.RamMB/fleet.HugePageMB {
		t.Errorf("%d MB took %d pages", vm.RamMB, took)
	}
	back()
}
