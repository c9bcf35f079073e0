package uffd

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/testkit"
)

func TestOnlyProtectedMappingsAreFound(t *testing.T) {
	got, err := parse(strings.NewReader(`7f00-7f10 rw-p 00000000 00:00 0 [heap]
Rss: 4 kB
VmFlags: rd wr mr
7fde23e00000-7fde33e00000 rw-p 00000000 00:00 0
Rss: 100 kB
VmFlags: rd wr mr mw me ac uw sd
nonsense
`))
	if err != nil || !slices.Equal(got, []span{{start: 0x7fde23e00000, size: 0x10000000}}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestAWriterThatWaitsIsFreed protects a page of this process and lets a thread
// write to it, as QEMU's does.
func TestAWriterThatWaitsIsFreed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root")
	}
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		t.Fatal(errno)
	}
	defer unix.Close(int(fd))
	mem, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	mem[0] = 1
	start := uint64(uintptr(unsafe.Pointer(&mem[0])))
	ioctl := func(request uintptr, arg unsafe.Pointer) {
		t.Helper()
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(arg)); errno != 0 {
			t.Fatalf("ioctl %x: %v", request, errno)
		}
	}
	api := struct{ api, features, ioctls uint64 }{api: 0xaa, features: 1} // write protection
	ioctl(0xc018aa3f, unsafe.Pointer(&api))
	register := struct{ start, size, mode, ioctls uint64 }{start, 4096, 2, 0}
	ioctl(0xc020aa00, unsafe.Pointer(&register))
	protect := struct{ start, size, mode uint64 }{start, 4096, 1}
	ioctl(0xc018aa06, unsafe.Pointer(&protect))

	written := make(chan struct{})
	go func() {
		mem[0] = 2 // waits in the kernel, with its thread
		close(written)
	}()
	select {
	case <-written:
		t.Fatal("the page is not protected")
	case <-time.After(100 * time.Millisecond):
	}
	open := func(n int) (*os.File, error) {
		dup, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0)
		return os.NewFile(uintptr(dup), "userfaultfd"), err
	}
	if err := Free(os.Getpid(), open); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, "the writer goes on", func() bool {
		select {
		case <-written:
			return mem[0] == 2
		default:
			return false
		}
	})
	if err := Free(os.Getpid(), open); err != nil {
		t.Errorf("once more: %v", err)
	}
}
