package health

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// guest answers after a while.
type guest struct {
	takes time.Duration
	state fleet.HealthState
	err   error
	count *counter
}

type counter struct {
	mu        sync.Mutex
	now, most int
	reads     int
}

// seen is how many reads there were, and at most at a time.
func (c *counter) seen() (reads, most int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reads, c.most
}

func (c *counter) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now += n
	c.most = max(c.most, c.now)
	if n > 0 {
		c.reads++
	}
}

func (g guest) Info(ctx context.Context) (fleet.GuestInfo, error) {
	g.count.add(1)
	defer g.count.add(-1)
	timer := time.NewTimer(g.takes)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return fleet.GuestInfo{}, ctx.Err()
	}
	if g.state == "" {
		return fleet.GuestInfo{}, g.err
	}
	return fleet.GuestInfo{Health: &fleet.HealthStatus{State: g.state}}, g.err
}

// However many guests there are, a bounded number is read at a time, and a
// listing waits no longer than its patience; the rest comes along with the next.
func TestFanOutIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, count := New(), &counter{}
		defer r.Close()
		guests := map[string]Guest{}
		for i := range 1000 {
			guests[fmt.Sprint(i)] = guest{takes: 100 * time.Millisecond, state: fleet.HealthPassing, count: count}
		}
		began := time.Now()
		got := r.Read(t.Context(), guests)
		if took := time.Since(began); took != Patience || len(got) < 9*AtOnce || len(got) > 10*AtOnce {
			t.Errorf("%d verdicts after %s", len(got), took)
		}
		<-time.NewTimer(10 * time.Second).C // all have been read by now
		if reads, most := count.seen(); most != AtOnce || reads != 1000 {
			t.Errorf("%d at a time, %d reads", most, reads)
		}
		if got := r.Read(t.Context(), guests); len(got) < 1000-10*AtOnce {
			t.Errorf("%d verdicts came along", len(got))
		}
	})
}

// A guest that does not answer is given up, costs the others nothing but the
// listing's patience, and is read once at a time.
func TestASickGuestHoldsNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, count, sick := New(), &counter{}, &counter{}
		defer r.Close()
		guests := map[string]Guest{
			"well": guest{state: fleet.HealthPassing, count: count},
			"sick": guest{takes: time.Hour, state: fleet.HealthPassing, count: sick},
			"deaf": guest{err: errors.New("no route"), count: count},
			"mute": guest{count: count},
			"mad":  guest{state: "splendid", count: count},
		}
		for i := range 4 {
			began := time.Now()
			got := r.Read(t.Context(), guests)
			if len(got) != 1 || got["well"].State != fleet.HealthPassing || time.Since(began) > Patience {
				t.Errorf("listing %d: %v after %s", i, got, time.Since(began))
			}
		}
		if reads, _ := sick.seen(); reads != 1 {
			t.Errorf("the sick one is read %d times at once", reads)
		}
		<-time.NewTimer(ReadTimeout).C
		r.Read(t.Context(), guests)
		if reads, most := sick.seen(); reads != 2 || most != 1 {
			t.Errorf("the sick one was read %d times", reads)
		}
	})
}

// A verdict that came late is told once, and only while somebody asks.
func TestALateVerdictIsToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, count := New(), &counter{}
		defer r.Close()
		slow := map[string]Guest{"a": guest{takes: 3 * time.Second, state: fleet.HealthFailing, count: count}}
		if got := r.Read(t.Context(), slow); len(got) != 0 {
			t.Errorf("at once: %v", got)
		}
		<-time.NewTimer(10 * time.Second).C
		dead := map[string]Guest{"a": guest{err: errors.New("gone"), count: count}}
		if got := r.Read(t.Context(), dead); got["a"].State != fleet.HealthFailing {
			t.Errorf("it did not come along: %v", got)
		}
		if got := r.Read(t.Context(), dead); len(got) != 0 {
			t.Errorf("told again: %v", got)
		}
		if r.Read(t.Context(), nil) != nil {
			t.Error("verdicts of nobody")
		}
	})
}

func TestCloseEndsReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New()
		sick := map[string]Guest{"a": guest{takes: time.Hour, count: &counter{}}}
		r.Read(t.Context(), sick)
		began := time.Now()
		r.Close()
		if took := time.Since(began); took > 0 {
			t.Errorf("closing took %s", took)
		}
		if got := r.Read(t.Context(), sick); len(got) != 0 {
			t.Errorf("read after closing: %v", got)
		}
	})
}
