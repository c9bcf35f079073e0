package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// rooted reports whether a process with this /proc/PID/cgroup is in no group
// that has a share of the processor.
func rooted(text string) bool {
	paths := map[string]string{} // by controller; "" is the unified hierarchy
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		for c := range strings.SplitSeq(controllers, ",") {
			paths[c] = path
		}
	}
	if path, ok := paths["cpu"]; ok {
		return path == "/"
	}
	return paths[""] == "/"
}

// What the kernel takes at most; a larger weight of cgroups v2 is refused.
const (
	mostShares = 1 << 18
	mostWeight = 10000
)

// balancing keeps the managers of one process from reading what another is
// about to change. Those of other processes are kept off by a lock on the base.
var balancing sync.Mutex

// balance gives the base, level by level, the weight of all that is below it.
// A program of the host that is in no group weighs 100 by itself, and beside
// many of them groups that had 100 together would get next to nothing. More
// than the processors can do is not asked for. Where the host has groups of its
// own (systemd's slices), the base is one among them.
func (m *Manager) balance() {
	mount, file, unit, most := m.v1["cpu"], "cpu.shares", 1024, mostShares
	if m.v2 != "" {
		mount, file, unit, most = m.v2, "cpu.weight", 100, mostWeight
	}
	if mount == "" || !m.rooted {
		return
	}
	balancing.Lock()
	defer balancing.Unlock()
	top, _, _ := strings.Cut(m.base, "/")
	if lock, err := os.Open(filepath.Join(mount, top)); err == nil {
		defer lock.Close()
		_ = unix.Flock(int(lock.Fd()), unix.LOCK_EX) // without it a change of another process may be missed until the next
	}
	for dir := m.base; dir != "."; dir = filepath.Dir(dir) {
		if sum := weights(filepath.Join(mount, dir), file); sum > 0 {
			_ = write(filepath.Join(mount, dir), file, strconv.Itoa(min(sum, m.processors*unit, most))) // it may have gone with its last group
		}
	}
}

// weights is the sum of the weights of the groups below a directory.
func weights(dir, file string) int {
	found, _ := filepath.Glob(filepath.Join(dir, "*", file)) // the pattern is well formed
	sum := 0
	for _, path := range found {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // removed meanwhile
		}
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			sum += n
		}
	}
	return sum
}
