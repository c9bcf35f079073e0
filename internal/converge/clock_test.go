package converge

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/reconcile"
)

// The two clocks are read apart: what is done to the wall clock shows as a
// difference between them.
func TestClockMeasuresTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shift := time.Duration(0)
		c := clock{wall: func() time.Time { return time.Now().Add(shift) }}
		commit := time.Now()
		lap := func(passes, jumps time.Duration) reconcile.Clock {
			<-time.After(passes)
			shift += jumps
			now, lap := c.lap(commit)
			if want := time.Now().Add(shift).Round(0); !now.Equal(want) {
				t.Errorf("now is %v, the wall clock shows %v", now, want)
			}
			return lap
		}
		got := []reconcile.Clock{lap(time.Second, time.Hour), lap(30*time.Second, 0), lap(30*time.Second, time.Hour), lap(30*time.Second, -2*time.Hour), lap(30*time.Second, 0)}
		want := []reconcile.Clock{
			{LastCommit: commit},
			{Wall: 30 * time.Second, Monotonic: 30 * time.Second, LastCommit: commit, Uptime: 30 * time.Second},
			{Wall: time.Hour + 30*time.Second, Monotonic: 30 * time.Second, LastCommit: commit, Uptime: 60 * time.Second},
			{Wall: 30*time.Second - 2*time.Hour, Monotonic: 30 * time.Second, LastCommit: commit, Uptime: 90 * time.Second},
			{Wall: 30 * time.Second, Monotonic: 30 * time.Second, LastCommit: commit, Uptime: 120 * time.Second},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}
