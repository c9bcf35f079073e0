package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// cgroupMode lets a process of any user read what its own cgroup says.
const cgroupMode fs.FileMode = 0o755

// cgroups hands out one cgroup v2 leaf per command below its directory.
type cgroups struct {
	dir string

	mu    sync.Mutex
	next  int
	stale []string // ended commands' leaves that still have processes
}

// leaf is the cgroup of one command.
type leaf struct {
	path string
	dir  *os.File
}

// newCgroups makes dir, which must lie in a cgroup v2 hierarchy whose kernel
// can kill a whole cgroup (Linux 5.14).
func newCgroups(dir string) (*cgroups, error) {
	if err := os.Mkdir(dir, cgroupMode); err != nil {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "cgroup.kill")); err != nil {
		_ = os.Remove(dir)
		return nil, fmt.Errorf("kill by cgroup: %w", err)
	}
	bound(dir)
	return &cgroups{dir: dir}, nil
}

// kernelReserve is how many tasks are left to the kernel and this program,
// which as PID 1 takes the machine down when it cannot start a thread.
const kernelReserve = 256

// bound keeps commands together from taking every task that the kernel has,
// and half the processor at least from this program when it wants it, so that
// a fork bomb can still be killed. Kernels without these controllers stay as
// they are.
func bound(dir string) {
	for _, controller := range []string{"+pids", "+cpu", "+memory"} {
		_ = os.WriteFile(filepath.Join(filepath.Dir(dir), "cgroup.subtree_control"), []byte(controller), 0)
	}
	boundMemory(dir)
	if most := readInt("/proc/sys/kernel/threads-max"); most > 0 {
		_ = os.WriteFile(filepath.Join(dir, "pids.max"), []byte(strconv.Itoa(tasksFor(most, readInt("/proc/sys/kernel/pid_max")))), 0)
	}
}

// boundMemory keeps commands together from taking the last of the machine's
// memory: what goes over is ended by the kernel among them, and this program,
// which everything else depends on, always finds some.
func boundMemory(dir string) {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return
	}
	if most := memoryFor(uint64(info.Totalram) * uint64(info.Unit)); most > 0 { //nolint:unconvert // other widths elsewhere
		_ = os.WriteFile(filepath.Join(dir, "memory.max"), []byte(strconv.FormatUint(most, 10)), 0)
	}
}

const (
	memoryReserve = 32 << 20
	// reserveShare is the most of a small machine's memory that is kept back: a
	// part in so many.
	reserveShare = 8
)

// memoryFor is how many of a machine's bytes commands may have.
func memoryFor(total uint64) uint64 { return total - min(memoryReserve, total/reserveShare) }

// tasksFor is how many of a kernel's tasks commands may have; zero is unknown.
func tasksFor(threadsMax, pidMax int) int {
	most := threadsMax
	if pidMax > 0 {
		most = min(most, pidMax)
	}
	return max(most-kernelReserve, most/2)
}

func readInt(path string) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	return n
}

func (c *cgroups) make() (*leaf, error) {
	c.sweep()
	c.mu.Lock()
	c.next++
	path := filepath.Join(c.dir, fmt.Sprintf("exec-%d", c.next))
	c.mu.Unlock()
	if err := os.Mkdir(path, cgroupMode); err != nil {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	dir, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		_ = os.Remove(path)
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	return &leaf{path: path, dir: dir}, nil
}

// kill ends every process in the leaf and below it, at once and without a
// chance to fork away.
func (l *leaf) kill() error {
	if err := os.WriteFile(filepath.Join(l.path, "cgroup.kill"), []byte("1"), 0); err != nil {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	return nil
}

// release removes the leaf, now or, where background processes still live in
// it, once they have ended.
func (c *cgroups) release(l *leaf) {
	_ = l.dir.Close()
	if removeTree(l.path) {
		return
	}
	c.mu.Lock()
	c.stale = append(c.stale, l.path)
	c.mu.Unlock()
}

func (c *cgroups) sweep() {
	c.mu.Lock()
	paths := c.stale
	c.stale = nil
	c.mu.Unlock()
	var left []string
	for _, path := range paths {
		if !removeTree(path) {
			left = append(left, path)
		}
	}
	c.mu.Lock()
	c.stale = append(c.stale, left...)
	c.mu.Unlock()
}

// close removes what can be removed.
func (c *cgroups) close() {
	c.sweep()
	_ = os.Remove(c.dir)
}

// removeTree removes a cgroup and those a command made below it. It removes
// none that has a process, and reports whether path is gone.
func removeTree(path string) bool {
	if err := os.Remove(path); err == nil || errors.Is(err, fs.ErrNotExist) {
		return true
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	for _, e := range entries {
		if e.IsDir() && !removeTree(filepath.Join(path, e.Name())) {
			return false
		}
	}
	err = os.Remove(path)
	return err == nil || errors.Is(err, fs.ErrNotExist)
}
