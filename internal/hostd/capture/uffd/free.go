package uffd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of the kernel's, each of a range and, the first, a mode.
const (
	writeProtect = 0xc018aa06 // UFFDIO_WRITEPROTECT; mode 0 ends it and wakes who waits
	unregister   = 0x8010aa01 // UFFDIO_UNREGISTER
	wake         = 0x8010aa02 // UFFDIO_WAKE
)

type span struct{ start, size, mode uint64 }

// Free ends all protection of a process's memory. QEMU 7.2 leaves it behind
// when a stream in the background fails: its guest's first write would wait for
// ever. open opens a descriptor of that process.
func Free(pid int, open func(number int) (*os.File, error)) error {
	spans, err := protected(pid)
	if err != nil || len(spans) == 0 {
		return err
	}
	numbers, err := descriptors(pid)
	if err != nil {
		return err
	}
	var last error
	for _, n := range numbers {
		f, err := open(n)
		if err != nil {
			last = err
			continue
		}
		for i := range spans {
			for _, request := range []uintptr{writeProtect, unregister, wake} {
				_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(unsafe.Pointer(&spans[i])))
				if errno != 0 {
					last = errno
				}
			}
		}
		_ = f.Close()
	}
	if spans, err = protected(pid); err == nil && len(spans) > 0 {
		err = fmt.Errorf("the memory of process %d stays protected: %w", pid, errors.Join(last, errors.New("no descriptor of its own frees it")))
	}
	return err
}

// descriptors are those of a process by which memory is protected.
func descriptors(pid int) ([]int, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.Contains(to, "userfaultfd") {
			out = append(out, n)
		}
	}
	return out, nil
}

func protected(pid int) ([]span, error) {
	f, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "smaps"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parse(f)
}

// parse finds the mappings with the flag uw in /proc/PID/smaps, each of which
// begins with "FROM-TO PERMS …" and has a line "VmFlags: …".
func parse(r io.Reader) ([]span, error) {
	var out []span
	var now span
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		f := strings.Fields(s.Text())
		if len(f) == 0 {
			continue
		}
		if from, to, ok := strings.Cut(f[0], "-"); ok {
			a, err1 := strconv.ParseUint(from, 16, 64)
			b, err2 := strconv.ParseUint(to, 16, 64)
			if err1 == nil && err2 == nil && b > a {
				now = span{start: a, size: b - a}
			}
		}
		if f[0] == "VmFlags:" && slices.Contains(f, "uw") {
			out = append(out, now)
		}
	}
	return out, s.Err()
}
