package testkit

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Threads that want more than there is are kept waiting, and none for longer than
// there was time.
func TestStarved(t *testing.T) {
	began := time.Now()
	starved := Starved(t, os.Getpid())
	var stop atomic.Bool
	var all sync.WaitGroup
	procs := runtime.GOMAXPROCS(8 * runtime.NumCPU())
	defer runtime.GOMAXPROCS(procs)
	for range 8 * runtime.NumCPU() {
		all.Go(func() {
			for !stop.Load() {
				_ = time.Since(began)
			}
		})
	}
	Eventually(t, time.Minute, "eight threads for each processor wait for it", func() bool { return starved() > 100*time.Millisecond })
	stop.Store(true)
	all.Wait()
	if waited, most := starved(), time.Since(began); waited > most {
		t.Errorf("starved for %v within %v", waited, most)
	}
}
