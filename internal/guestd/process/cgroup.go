package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
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
	return &cgroups{dir: dir}, nil
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
