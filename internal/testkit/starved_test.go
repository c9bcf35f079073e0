package testkit

import (
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
)

// Threads that want more than there is are kept waiting; one that sleeps is not.
func TestStarved(t *testing.T) {
	idle := Starved(t)
	<-time.After(50 * time.Millisecond)
	quiet := idle()
	if quiet < 0 {
		t.Errorf("starved for %v", quiet)
	}
	starved := Starved(t, os.Getpid()) // this one counts once, whoever names it
	stop := make(chan struct{})
	var all sync.WaitGroup
	procs := runtime.GOMAXPROCS(8 * runtime.NumCPU())
	defer runtime.GOMAXPROCS(procs)
	for range 8 * runtime.NumCPU() {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	Eventually(t, time.Minute, "eight threads for each processor wait for it", func() bool { return starved() > 100*time.Millisecond })
	close(stop)
	all.Wait()
}
