package bounds

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// ticks is the kernel's USER_HZ, the same on all architectures that run VMs.
const ticks = 100

// process reads what a process has taken of the processor, with all its
// threads, and how much memory it holds.
func process(pid int) (cpuSeconds float64, memory int64, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, rest, ok := bytes.Cut(raw[max(0, bytes.LastIndexByte(raw, ')')):], []byte(") ")) // a name may hold anything
	f := strings.Fields(string(rest))
	if !ok || len(f) < 22 {
		return 0, 0, fmt.Errorf("process %d: its figures cannot be read", pid)
	}
	user, err1 := strconv.ParseInt(f[11], 10, 64)
	system, err2 := strconv.ParseInt(f[12], 10, 64)
	pages, err3 := strconv.ParseInt(f[21], 10, 64)
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return 0, 0, fmt.Errorf("process %d: %w", pid, err)
		}
	}
	return float64(user+system) / ticks, pages * int64(os.Getpagesize()), nil
}
