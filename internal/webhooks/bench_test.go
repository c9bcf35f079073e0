package webhooks

import (
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/testkit"
)

// BenchmarkDeliver is the way of an event to a receiver that answers at once,
// its record included.
func BenchmarkDeliver(b *testing.B) {
	w := newWorld(b)
	h, _ := w.hook("vm.*")
	for range b.N {
		w.emit("a", fleet.EventVMRunning)
	}
	b.ResetTimer()
	stop := w.run()
	testkit.Eventually(b, time.Minute, "all are delivered", func() bool { return w.get(h.ID).Cursor >= uint64(b.N) })
	b.StopTimer()
	stop()
}
