package guest

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// peak measures by how much live memory grows until stop is called.
func peak() (most *atomic.Int64, stop func()) {
	most = &atomic.Int64{}
	before := heap()
	done := make(chan struct{})
	var measuring sync.WaitGroup
	measuring.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				most.Store(max(most.Load(), heap()-before))
			}
		}
	})
	return most, func() {
		close(done)
		measuring.Wait()
	}
}

// heap is what is live, in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
