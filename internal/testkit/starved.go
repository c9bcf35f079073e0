package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Starved counts from now on for how long that thread of these processes, and of
// this one, which was kept waiting the longest could have run and was given no
// processor. Bars on real time are held without that: who else is busy on the machine
// is not the product's doing.
func Starved(t testing.TB, pids ...int) func() time.Duration {
	t.Helper()
	pids = append(pids, os.Getpid())
	before := waits(t, pids)
	return func() time.Duration {
		t.Helper()
		var longest time.Duration
		for thread, now := range waits(t, pids) {
			longest = max(longest, now-before[thread])
		}
		return longest
	}
}

// waits is how long each thread has waited for a processor since it began.
func waits(t testing.TB, pids []int) map[string]time.Duration {
	t.Helper()
	out := map[string]time.Duration{}
	for _, pid := range pids {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range threads {
			var ran, waited int64
			raw, err := os.ReadFile(path)
			if err != nil {
				continue // it has ended
			}
			if _, err := fmt.Sscan(string(raw), &ran, &waited); err != nil {
				t.Fatalf("%s: %v: %q", path, err, raw)
			}
			out[path] = time.Duration(waited)
		}
	}
	return out
}
