package lease

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

// row is a lease row: a store that one can cut off.
type row struct {
	mu      sync.Mutex
	period  time.Duration
	expires time.Time
	fail    error
	hang    bool
	calls   int
	given   int
}

func (r *row) set(fn func(*row)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn(r)
}

func (r *row) extend(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if r.hang {
		r.mu.Unlock()
		<-ctx.Done()
		r.mu.Lock()
		return ctx.Err()
	}
	if r.fail == nil {
		r.expires = time.Now().Add(r.period)
	}
	return r.fail
}

func (r *row) giveUp(context.Context) error {
	r.set(func(r *row) { r.given++ })
	return nil
}

// free reports whether another server may take the lease.
func (r *row) free() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !time.Now().Before(r.expires)
}

func keep(period time.Duration) (*row, *Keeper) {
	r := &row{period: period, expires: time.Now().Add(period)}
	return r, Keep(Config{Timing: Timing{Period: period}, Asked: Now(), Extend: r.extend, GiveUp: r.giveUp})
}

func release(t *testing.T, k *Keeper) {
	t.Helper()
	if err := k.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
}

func lost(k *Keeper) bool {
	select {
	case <-k.Lost():
		return true
	default:
		return false
	}
}

func TestALeaseIsKeptForAsLongAsTheStoreAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, k := keep(15 * time.Second)
		<-time.After(10 * time.Minute)
		if err := k.Check(); err != nil || lost(k) || r.free() {
			t.Errorf("after ten minutes: %v, free %v", err, r.free())
		}
		if r.calls < 115 || r.calls > 121 {
			t.Errorf("%d renewals in ten minutes, want one every five seconds", r.calls)
		}
		if left, lasting := k.Left(); lasting || left < 8*time.Second || left > 14*time.Second {
			t.Errorf("left %v, lasting %v", left, lasting)
		}
		release(t, k)
		release(t, k)
		if err := k.Check(); !errors.Is(err, fleet.ErrNotLeader) || !lost(k) || r.given != 1 {
			t.Errorf("released: %v, lost %v, given up %d times", err, lost(k), r.given)
		}
	})
}

// TestTheHolderStopsBeforeAnybodyElseCanBegin cuts the store off in every way
// and looks at every moment: there is none at which the lease is free and the
// holder does not know.
func TestTheHolderStopsBeforeAnybodyElseCanBegin(t *testing.T) {
	for name, cut := range map[string]func(*row){
		"errors": func(r *row) { r.fail = errors.New("connection refused") },
		"hangs":  func(r *row) { r.hang = true },
	} {
		for _, period := range []time.Duration{time.Second, 15 * time.Second} {
			t.Run(fmt.Sprint(name, " ", period), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r, k := keep(period)
					<-time.After(10*period + period/7)
					r.set(cut)
					start := time.Now()
					for !lost(k) {
						if r.free() {
							t.Fatal("the lease is free and its holder does not know")
						}
						<-time.After(time.Millisecond)
					}
					if took := time.Since(start); took > period {
						t.Errorf("noticed after %v", took)
					}
					if err := k.Check(); !errors.Is(err, fleet.ErrNotLeader) {
						t.Errorf("check: %v", err)
					}
					// Once lost, always lost: another may have led meanwhile.
					r.set(func(r *row) { r.fail, r.hang = nil, false })
					<-time.After(3 * period)
					if k.Check() == nil {
						t.Error("a term came back")
					}
					release(t, k)
					if r.given != 0 {
						t.Error("a lost term was given up at the store")
					}
				})
			})
		}
	}
}

func TestAnOutageShorterThanTheLeaseCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, k := keep(15 * time.Second)
		for range 20 {
			<-time.After(16 * time.Second)
			r.set(func(r *row) { r.hang = true })
			<-time.After(6 * time.Second)
			r.set(func(r *row) { r.hang = false })
		}
		if err := k.Check(); err != nil {
			t.Error(err)
		}
		release(t, k)
	})
}

func TestARefusalEndsTheTermAtOnce(t *testing.T) {
	for _, refusal := range []error{fleet.ErrNotLeader, fleet.ErrStaleTerm} {
		synctest.Test(t, func(t *testing.T) {
			r, k := keep(15 * time.Second)
			r.set(func(r *row) { r.fail = fmt.Errorf("renew: %w", refusal) })
			<-time.After(6 * time.Second)
			if err := k.Check(); !errors.Is(err, refusal) || !errors.Is(err, fleet.ErrNotLeader) || !lost(k) {
				t.Errorf("check: %v", err)
			}
			release(t, k)
		})
	}
}

// TestTimeSpentAsleepCounts moves the clock that counts the machine's sleep,
// while Go's own stands still.
func TestTimeSpentAsleepCounts(t *testing.T) {
	clock := bootTime
	var mu sync.Mutex
	var slept time.Duration
	bootTime = func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return clock() + slept
	}
	defer func() { bootTime = clock }()
	synctest.Test(t, func(t *testing.T) {
		_, k := keep(15 * time.Second)
		mu.Lock()
		slept = 13 * time.Second
		mu.Unlock()
		if err := k.Check(); err != nil {
			t.Errorf("before the margin: %v", err)
		}
		mu.Lock()
		slept = 14 * time.Second
		mu.Unlock()
		if err := k.Check(); !errors.Is(err, fleet.ErrNotLeader) {
			t.Errorf("after it: %v", err)
		}
		release(t, k)
	})
}

func TestALastingLeaseHasNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &row{fail: errors.New("cannot look")}
		k := Keep(Config{Timing: Timing{Renew: time.Second}, Lasting: true, Asked: Now(), Extend: r.extend})
		<-time.After(time.Hour)
		if err := k.Check(); err != nil || lost(k) {
			t.Errorf("check: %v", err)
		}
		r.set(func(r *row) { r.fail = fleet.ErrNotLeader })
		<-time.After(2 * time.Second)
		if !lost(k) {
			t.Error("not lost")
		}
		release(t, k)
	})
}

func TestEndTellsWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, k := keep(time.Second)
		cause := errors.New("closed")
		if err := k.End(cause); !errors.Is(err, cause) || !errors.Is(err, fleet.ErrNotLeader) {
			t.Errorf("end: %v", err)
		}
		if err := k.End(errors.New("again")); !errors.Is(err, cause) {
			t.Errorf("the second end: %v", err)
		}
		release(t, k)
	})
}

func TestTimingHasDefaults(t *testing.T) {
	got := Timing{}.Normal()
	if want := (Timing{15 * time.Second, 5 * time.Second, 1500 * time.Millisecond}); got != want {
		t.Errorf("%+v", got)
	}
	for period, poll := range map[time.Duration]time.Duration{
		time.Second: 200 * time.Millisecond, 15 * time.Second: time.Second, time.Millisecond: 50 * time.Millisecond,
	} {
		if got := (Timing{Period: period}).Poll(); got != poll {
			t.Errorf("a lease of %v is polled every %v", period, got)
		}
	}
}
