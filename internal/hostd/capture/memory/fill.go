package memory

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// fillChunk is how much is mapped at a time, in bytes.
const fillChunk = 64 << 20

// Fill fills the holes of a memory of size bytes that a process maps for its
// guest, if it does: QEMU reads all of it for a capture, and whoever fills a hole
// waits for it and pays for it. What this program may not open QEMU fills, and of
// a process that has ended its own channel tells.
func Fill(ctx context.Context, pid int, size int64) error {
	f, err := opened(pid, size)
	if f == nil || err != nil {
		return err
	}
	defer f.Close()
	for off := int64(0); off < size; off += fillChunk {
		if err := ctx.Err(); err != nil {
			return err
		}
		m, err := unix.Mmap(int(f.Fd()), off, int(min(fillChunk, size-off)), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return fmt.Errorf("map the memory of process %d: %w", pid, err)
		}
		err = errors.Join(unix.Madvise(m, unix.MADV_POPULATE_READ), unix.Munmap(m))
		if errors.Is(err, unix.EINVAL) {
			return nil // a kernel before 5.14: QEMU does it
		}
		if err != nil {
			return fmt.Errorf("fill the memory of process %d: %w", pid, err)
		}
	}
	return nil
}

// Holes is what Fill would take of the machine's memory, in bytes.
func Holes(pid int, size int64) (int64, error) {
	f, err := opened(pid, size)
	if f == nil || err != nil {
		return 0, err
	}
	defer f.Close()
	return max(size-Bytes(f), 0), nil
}

// opened opens the memory of size bytes that a process maps for its guest; nil:
// it maps none that this program may open.
func opened(pid int, size int64) (*os.File, error) {
	at, err := mapped(pid, size)
	var f *os.File
	if err == nil && at != "" {
		f, err = os.Open(fmt.Sprintf("/proc/%d/map_files/%s", pid, at))
	}
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("open the memory of process %d: %w", pid, err)
	}
	return f, nil
}

// mapped is where a process maps a file without a name of that size; empty:
// nowhere.
func mapped(pid int, size int64) (string, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return "", err
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		fields := strings.Fields(s.Text())
		if len(fields) < 6 || !strings.HasPrefix(fields[1], "rw-") || !strings.HasPrefix(fields[5], "/memfd:") {
			continue
		}
		from, to, _ := strings.Cut(fields[0], "-")
		a, err1 := strconv.ParseUint(from, 16, 64)
		b, err2 := strconv.ParseUint(to, 16, 64)
		if err1 == nil && err2 == nil && int64(b-a) == size {
			return fields[0], nil
		}
	}
	return "", s.Err()
}
