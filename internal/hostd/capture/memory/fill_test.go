package memory

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// What reads a hole of a private mapping fills it; Fill has done that before.
func TestFill(t *testing.T) {
	const size = 80 << 20
	f, err := New("fill", size)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("a page"), size/2); err != nil {
		t.Fatal(err)
	}
	if err := Seal(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	if err := Fill(t.Context(), os.Getpid(), size); err != nil || Bytes(f) > 1<<20 {
		t.Errorf("what nobody maps: %v, it has %d bytes", err, Bytes(f))
	}
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	ended, end := context.WithCancel(t.Context())
	end()
	if err := Fill(ended, os.Getpid(), size); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its caller: %v", err)
	}
	if err := Fill(t.Context(), os.Getpid(), size/2); err != nil || Bytes(f) > 1<<20 {
		t.Errorf("another size: %v, it has %d bytes", err, Bytes(f))
	}
	if err := unprivileged(func() error { return Fill(t.Context(), os.Getpid(), size) }); err != nil || Bytes(f) > 1<<20 {
		t.Errorf("without the right to: %v, it has %d bytes", err, Bytes(f))
	}
	if holes, err := Holes(os.Getpid(), size); err != nil || holes < size-1<<20 || holes > size-4096 {
		t.Errorf("%d bytes of holes: %v", holes, err)
	}
	if err := Fill(t.Context(), os.Getpid(), size); err != nil || Bytes(f) != size {
		t.Errorf("%v, it has %d bytes of %d", err, Bytes(f), size)
	}
	if string(m[size/2:size/2+6]) != "a page" || m[0] != 0 {
		t.Error("the content is another")
	}
	for _, pid := range []int{os.Getpid(), 1 << 30} {
		if holes, err := Holes(pid, size); err != nil || holes != 0 {
			t.Errorf("%d bytes of holes are left in process %d: %v", holes, pid, err)
		}
	}
	if err := Fill(t.Context(), 1<<30, size); err != nil {
		t.Errorf("a process that has ended: %v", err)
	}
}

// unprivileged does something on a thread without capabilities, which ends with it.
func unprivileged(do func() error) error {
	out := make(chan error)
	go func() {
		runtime.LockOSThread()
		none := [2]unix.CapUserData{}
		err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0])
		if err == nil {
			err = do()
		}
		out <- err
	}()
	return <-out
}
