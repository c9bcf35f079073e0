package notify

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// about commits one event of ann's about each of many playgrounds.
func (w *world) about(typ string, from, to int) {
	w.t.Helper()
	w.update(func(tx *state.Tx) error {
		for i := from; i < to; i++ {
			tx.Emit(fleet.Event{EntityType: fleet.EntityPlayground, EntityID: fmt.Sprintf("q%d", i), Owner: "ann", Type: typ})
		}
		return nil
	})
}

// However many things happen, no more than so many messages wait for a receiver
// that takes none; what was held is told when it takes them again.
func TestTheQueueOfARouteIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.add(NewRoute{Name: "ann", Scope: ScopePlayer, Channel: ChannelEmail, To: []string{"ann@example.org"}, Most: 1, Window: time.Minute})
		var answers atomic.Bool
		var told atomic.Int64
		w.svc.try = func(_ context.Context, _ Route, m Message) error {
			if !answers.Load() {
				return errors.New("nobody there")
			}
			told.Add(int64(max(m.Held, 1)))
			return nil
		}
		stop := w.run()
		const many = 3 * maxPending
		for range 4 { // and again when digests are due
			w.about(fleet.EventPlaygroundFlagged, 0, many)
			<-time.After(10 * time.Minute)
			synctest.Wait()
			if got, err := w.svc.Get(context.Background(), r.ID); err != nil || got.Pending > maxPending {
				t.Fatalf("%d messages wait, %v", got.Pending, err)
			}
		}
		answers.Store(true)
		<-time.After(5 * time.Hour)
		synctest.Wait()
		if n := told.Load(); n != 4*many {
			t.Errorf("%d of %d things were told of", n, 4*many)
		}
		stop()
	})
}

// A receiver that is slow keeps nobody waiting but who is told by it.
func TestASlowReceiverKeepsNobodyElseWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for i := range 2 * atOnce { // of one player
			w.add(NewRoute{Name: fmt.Sprint("slow", i), Scope: ScopePlayer, Channel: ChannelEmail, To: []string{"ann@example.org"}})
		}
		if _, err := w.svc.Add(auth.With(context.Background(), auth.Principal{Name: "bob", Role: fleet.RoleUser}),
			NewRoute{Name: "bob", Scope: ScopePlayer, Channel: ChannelEmail, To: []string{"bob@example.org"}}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var bob atomic.Int64
		var busy, most atomic.Int32
		w.svc.try = func(_ context.Context, r Route, _ Message) error {
			if r.Owner == "bob" {
				bob.Store(int64(time.Since(began)))
				return nil
			}
			most.Store(max(most.Load(), busy.Add(1)))
			<-time.After(SendTime - time.Second)
			busy.Add(-1)
			return nil
		}
		stop := w.run()
		w.about(fleet.EventPlaygroundFlagged, 0, 50)
		<-time.After(5 * time.Second)
		w.update(func(tx *state.Tx) error {
			tx.Emit(fleet.Event{EntityType: fleet.EntityPlayground, EntityID: "b", Owner: "bob", Type: fleet.EventPlaygroundFlagged})
			return nil
		})
		<-time.After(time.Minute)
		synctest.Wait()
		if after := time.Duration(bob.Load()); after == 0 || after > 10*time.Second {
			t.Errorf("bob was told after %s", after)
		}
		if n := most.Load(); n < 1 || n > perOwner {
			t.Errorf("ann's receivers had %d connections at a time", n)
		}
		stop()
	})
}

// What is gone is not remembered, whatever was wrong with it.
func TestWhatIsGoneIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add(NewRoute{Name: "ann", Scope: ScopePlayer, Channel: ChannelEmail, To: []string{"ann@example.org"}})
		w.svc.try = func(context.Context, Route, Message) error { return nil }
		stop := w.run()
		w.about(fleet.EventPlaygroundParked, 0, 100)
		w.about(fleet.EventPlaygroundFlagged, 0, 200)
		<-time.After(time.Hour)
		w.about(fleet.EventPlaygroundDestroyed, 0, 100)
		remembered := func() (n int) {
			<-time.After(3 * time.Hour)
			synctest.Wait()
			if err := w.store.View(func(tx *state.ReadTx) error {
				for _, m := range Memories.All(tx) {
					if m.Damp != nil {
						n++
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			return n
		}
		if n := remembered(); n != 100 {
			t.Errorf("%d are remembered, want the 100 that are there", n)
		}
		stop()
	})
}

// Nobody floods an address by trying a route.
func TestTriesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, name := range []string{"a", "b"} { // more routes do not help
			w.add(NewRoute{Name: name, Scope: ScopePlayer, Channel: ChannelEmail, To: []string{"eve@example.org"}})
		}
		sent := 0
		w.svc.try = func(context.Context, Route, Message) error { sent++; return nil }
		ann := auth.With(context.Background(), auth.Principal{Name: "ann", Role: fleet.RoleUser})
		refused := 0
		for i := range 4 * mostTests {
			if _, err := w.svc.Test(ann, []string{"a", "b"}[i%2]); fleet.CodeOf(err) == fleet.CodeQuotaExceeded {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if sent != mostTests || refused != 3*mostTests {
			t.Errorf("%d were sent, %d refused", sent, refused)
		}
		<-time.After(testWindow)
		if _, err := w.svc.Test(ann, "a"); err != nil || sent != mostTests+1 {
			t.Errorf("after a while: %v", err)
		}
	})
}

// A server that repeats what it was told does not have the password told.
func TestWhatAServerRepeats(t *testing.T) {
	for _, said := range []string{"535 p w\td is wrong", "535 AGZ1c2UAcCB3CWQ= is wrong", "535 cCB3CWQ= is wrong"} {
		if got := without(said, "fuse", "p w\td"); got != "535 … is wrong" {
			t.Errorf("%q: %q", said, got)
		}
	}
}
