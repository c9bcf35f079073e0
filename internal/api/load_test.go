package api

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/testkit"
)

// openFeed starts a stream of the fleet's events.
func (w *world) openFeed(ctx context.Context, f *tally) (ended <-chan struct{}) {
	f.header = http.Header{}
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1/v1/events", nil)
	r.Header.Set("Authorization", "Bearer "+testToken)
	r.Header.Set("Accept", "text/event-stream")
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.srv.ServeHTTP(f, r)
	}()
	return done
}

// tally is a follower of the fleet that keeps the ids alone. Every write has
// whole messages.
type tally struct {
	follower
	ids      []string // guarded by mu
	resynced bool     // guarded by mu
}

func (f *tally) Write(p []byte) (int, error) {
	if f.gate != nil {
		<-f.gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for block := range strings.SplitSeq(string(p), "\n\n") {
		if id, rest, ok := strings.Cut(block, "\nevent: "); ok {
			f.ids = append(f.ids, strings.TrimPrefix(id, "id: "))
			f.resynced = f.resynced || strings.HasPrefix(rest, "resync")
		}
	}
	return len(p), nil
}

func (f *tally) last() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.ids) == 0 {
		return ""
	}
	return f.ids[len(f.ids)-1]
}

// Two thousand followers of an environment each and twenty of the fleet, of
// which one takes nothing until the end, see a thousand events a second:
// nobody misses or repeats one, the end least of all, and whoever makes the
// events waits for nobody.
func TestEventsUnderLoad(t *testing.T) {
	const environments, fleetwide, perTick = 2000, 20, 10
	ticks := testkit.Count(500, 6000) // of 10 ms
	w := newWorld(t, quiet)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var singles []*follower
	var wides []*tally
	var ends, wideEnds []<-chan struct{}
	for i := range environments {
		w.add(fmt.Sprint("t", i))
	}
	for i := range environments {
		f := &follower{}
		singles, ends = append(singles, f), append(ends, w.open(ctx, fmt.Sprint("fuse-t", i), "", f))
	}
	_, head := w.store.Head()
	for i := range fleetwide {
		f := &tally{}
		if i == 0 {
			f.gate = make(chan struct{})
		}
		wides, wideEnds = append(wides, f), append(wideEnds, w.openFeed(ctx, f))
	}
	wides[0].gate <- struct{}{} // it is connected, and takes no more
	testkit.Eventually(t, 2*time.Minute, "all are connected", func() bool {
		for _, f := range wides[1:] {
			f.mu.Lock()
			status := f.status
			f.mu.Unlock()
			if status == 0 {
				return false
			}
		}
		return !slices.ContainsFunc(singles, func(f *follower) bool { return f.text() == "" })
	})

	emitted := make([][]string, environments) // ids of each environment
	var slowest time.Duration
	publish := func(from, n int, typ string, s fleet.VMState) {
		start := time.Now()
		c := w.update(func(tx *state.Tx) error {
			for i := range n {
				k := (from + i) % environments
				tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: fmt.Sprint("fuse-t", k), UID: fmt.Sprint("u", k), Type: typ, State: s})
			}
			return nil
		})
		slowest = max(slowest, time.Since(start))
		for i := range n {
			emitted[(from+i)%environments] = append(emitted[(from+i)%environments], fleet.EventID(c.Events[i].Seq))
		}
	}
	start := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := range ticks {
		publish(i*perTick, perTick, fleet.EventVMRunning, fleet.VMStateRunning)
		<-tick.C
	}
	took := time.Since(start)
	for i := 0; i < environments; i += perTick {
		publish(i, perTick, fleet.EventVMRemoved, fleet.VMStateDestroyed)
	}
	t.Logf("%d events in %s, the slowest commit of %d took %s", ticks*perTick, took.Round(time.Millisecond), perTick, slowest.Round(time.Microsecond))
	if slowest > 30*time.Second { // one that takes nothing would hold it up for ever
		t.Errorf("a commit took %s: somebody was waited for", slowest)
	}

	for i, end := range ends {
		<-end
		got := idsOf(singles[i].events(t))
		if !slices.Equal(got[1:], emitted[i]) { // the first is the state at the beginning
			t.Fatalf("follower %d has %d events, want %d", i, len(got)-1, len(emitted[i]))
		}
	}
	close(wides[0].gate)
	_, last := w.store.Head()
	var want []string
	for seq := head + 1; seq <= last; seq++ {
		want = append(want, fleet.EventID(seq))
	}
	testkit.Eventually(t, 5*time.Minute, "everybody has the last event", func() bool {
		return !slices.ContainsFunc(wides, func(f *tally) bool { return f.last() != fleet.EventID(last) })
	})
	cancel()
	for i, end := range wideEnds {
		<-end
		if f := wides[i]; f.resynced || !slices.Equal(f.ids, want) {
			t.Errorf("fleet-wide follower %d has %d events, want %d (resync %v)", i, len(f.ids), len(want), f.resynced)
		}
	}
}
