package webhooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/testkit"
)

var errDown = errors.New("connection refused")

func down(got) (int, error) { return 0, errDown }

// inOrder checks that the receiver took every event of the list, and those of
// each environment in the order of the log.
func inOrder(t *testing.T, h fleet.Webhook, took []got, want []uint64) {
	t.Helper()
	last, seen := map[string]string{}, map[string]bool{}
	for _, g := range took {
		if seen[g.id] {
			t.Errorf("%s arrived twice", g.id)
		}
		seen[g.id] = true
		if g.id < last[g.vm] {
			t.Errorf("%s of %s arrived after %s", g.id, g.vm, last[g.vm])
		}
		last[g.vm] = g.id
	}
	for _, seq := range want {
		if !seen[messageID(h, seq)] {
			t.Errorf("event %d never arrived", seq)
		}
	}
	if len(seen) != len(want) {
		t.Errorf("%d messages arrived, want %d", len(seen), len(want))
	}
}

// A receiver that is down for an hour misses nothing, is not flooded while it
// is down, and has all soon after it is back.
func TestReceiverDownForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h, _ := w.hook("vm.*")
		defer w.run()()
		var want []uint64
		for i := range 10 {
			want = append(want, w.emit(fmt.Sprint("vm", i%3), fleet.EventVMRunning))
		}
		synctest.Wait()
		w.receiver.set(down)
		n := testkit.Count(2000, 20_000)
		for i := range n {
			want = append(want, w.emit(fmt.Sprint("vm", i%7), fleet.EventVMRunning))
			if i%(n/20) == 0 {
				<-time.After(3 * time.Minute)
			}
		}
		<-time.After(time.Hour)
		all, took := w.receiver.list()
		if tries := len(all) - len(took); tries > 120 {
			t.Errorf("%d tries at a receiver that is down", tries)
		}
		if got := w.get(h.ID); got.Failures < downAfter || got.Disabled != nil {
			t.Errorf("after an hour of failures: %+v", got)
		}
		if n := len(w.deliveries(h.ID, fleet.DeliveryPending)); n == 0 || n > maxPending {
			t.Errorf("%d messages set aside", n)
		}
		w.receiver.set(nil)
		<-time.After(longestProbe + 2*time.Minute)
		_, took = w.receiver.list()
		inOrder(t, h, took, want)
		if got := w.get(h.ID); got.Failures != 0 || got.Cursor < want[len(want)-1] {
			t.Errorf("after it is back: %+v", got)
		}
		if left := w.deliveries(h.ID, fleet.DeliveryPending); len(left) != 0 {
			t.Errorf("%d still pending", len(left))
		}
	})
}

// A message that the receiver will not take holds up nobody else, is tried
// with growing pauses for a day, and is then given up, which is an event.
func TestPoisonIsGivenUpAfterADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h, _ := w.hook("vm.*")
		w.receiver.set(func(g got) (int, error) {
			if g.typ == fleet.EventVMDraining {
				return 400, nil
			}
			return 200, nil
		})
		defer w.run()()
		poison := w.emit("a", fleet.EventVMDraining)
		behind := w.emit("a", fleet.EventVMDestroying)
		other := w.emit("b", fleet.EventVMRunning)
		synctest.Wait()
		if _, took := w.receiver.list(); len(took) != 1 || took[0].id != messageID(h, other) {
			t.Errorf("at once arrived %v, want only %d", took, other)
		}
		<-time.After(20 * time.Minute)
		if _, took := w.receiver.list(); len(took) != 2 || took[1].id != messageID(h, behind) {
			t.Errorf("after some tries arrived %d, want what stood behind", len(took))
		}
		for range 24 {
			w.emit("b", fleet.EventVMRunning) // other successes do not bring it forward
			<-time.After(time.Hour)
		}
		<-time.After(time.Hour)
		failed := w.deliveries(h.ID, fleet.DeliveryFailed)
		if len(failed) != 1 || failed[0].Seq != poison || failed[0].Status != 400 || failed[0].Attempts < 10 || failed[0].Attempts > 40 {
			t.Errorf("given up: %+v", failed)
		}
		events := w.events(fleet.EventWebhookDeliveryFailed)
		if len(events) != 1 || events[0].Reason == nil || events[0].Owner != "ann" {
			t.Errorf("events %+v", events)
		}
		all, _ := w.receiver.list()
		var pauses []time.Duration
		var last time.Time
		for _, g := range all {
			if g.id == messageID(h, poison) {
				if !last.IsZero() {
					pauses = append(pauses, g.at.Sub(last))
				}
				last = g.at
			}
		}
		for i := 1; i < 6; i++ {
			if pauses[i] < pauses[i-1]*3/2 {
				t.Errorf("pauses do not grow: %v", pauses[:7])
			}
		}
	})
}

func TestDisabledAfterDaysOfFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h, _ := w.hook()
		w.receiver.set(down)
		defer w.run()()
		for range 80 {
			w.emit("a", fleet.EventVMRunning)
			<-time.After(time.Hour)
		}
		got := w.get(h.ID)
		if got.Disabled == nil || got.Disabled.Actor != fleet.ActorWebhooks || got.DisabledAt.Sub(got.CreatedAt) < disableAfter {
			t.Fatalf("after three days: %+v", got)
		}
		if events := w.events(fleet.EventWebhookDisabled); len(events) != 1 {
			t.Errorf("events %v", events)
		}
		all, _ := w.receiver.list()
		last := w.emit("a", fleet.EventVMRunning)
		<-time.After(time.Hour)
		if more, _ := w.receiver.list(); len(more) != len(all) {
			t.Error("a disabled webhook is still tried")
		}
		w.receiver.set(nil)
		if _, err := w.svc.Enable(context.Background(), h.ID, "user:ann"); err != nil {
			t.Fatal(err)
		}
		waiting := len(w.deliveries(h.ID, fleet.DeliveryPending))
		<-time.After(time.Minute)
		if _, took := w.receiver.list(); len(took) < waiting || took[len(took)-1].id < messageID(h, last) {
			t.Errorf("%d arrived of %d that waited, and what came meanwhile", len(took), waiting)
		}
	})
}

func TestGoneDisables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h, _ := w.hook()
		w.receiver.set(func(got) (int, error) { return 410, nil })
		defer w.run()()
		w.emit("a", fleet.EventVMRunning)
		synctest.Wait()
		if got := w.get(h.ID); got.Disabled == nil {
			t.Errorf("%+v", got)
		}
	})
}

// The place in the log is kept also when nothing of it is wanted and nothing
// more comes: else it would look, much later, as if events were missing.
func TestPlaceIsKeptWithoutMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h, _ := w.hook("task.*")
		defer w.run()()
		var last uint64
		for range 100 {
			last = w.emit("a", fleet.EventVMRunning)
		}
		<-time.After(2 * saveEvery)
		if got := w.get(h.ID); got.Cursor != last {
			t.Errorf("cursor %d of %d", got.Cursor, last)
		}
		revision, _ := w.store.Head()
		<-time.After(time.Hour)
		if now, _ := w.store.Head(); now != revision {
			t.Errorf("%d commits in an hour in which nothing happened", now-revision)
		}
	})
}

// unstored is a state owner that fails some Updates.
type unstored struct {
	*state.Store
	fail atomic.Int64
}

func (u *unstored) Update(ctx context.Context, fn func(*state.Tx) error) (state.Commit, error) {
	if u.fail.Add(-1) >= 0 {
		return state.Commit{}, fleet.ErrStoreUnavailable
	}
	return u.Store.Update(ctx, fn)
}

// What was sent but not recorded is sent again, under the same id and with the
// same body; nothing else is.
func TestRepeatsHaveTheSameID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u *unstored
		w := newWorld(t, func(c *Config) {
			u = &unstored{Store: c.Store.(*state.Store)}
			c.Store = u
		})
		h, _ := w.hook("vm.running")
		stop := w.run()
		first := w.emit("a", fleet.EventVMRunning)
		synctest.Wait()
		u.fail.Store(1)
		second := w.emit("a", fleet.EventVMRunning)
		synctest.Wait()
		stop() // as when leadership moves before the record was made
		u.fail.Store(0)
		w.svc.workers = map[string]*worker{}
		w.run()
		third := w.emit("a", fleet.EventVMRunning)
		<-time.After(time.Minute)
		_, took := w.receiver.list()
		var ids []string
		for _, g := range took {
			ids = append(ids, g.id)
		}
		want := []string{messageID(h, first), messageID(h, second), messageID(h, second), messageID(h, third)}
		if !slices.Equal(ids, want) || string(took[1].body) != string(took[2].body) {
			t.Errorf("arrived %v, want %v", ids, want)
		}
	})
}

// A webhook whose place in the log was purged says which events are missing
// and goes on.
func TestGapGivesResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h, _ := w.hook("vm.*")
		for range 100 {
			w.emit("a", fleet.EventVMRunning)
		}
		if _, err := w.store.PurgeEvents(context.Background(), time.Time{}, 10); err != nil {
			t.Fatal(err)
		}
		_, head := w.store.Head()
		defer w.run()()
		<-time.After(time.Second)
		_, took := w.receiver.list()
		if len(took) != 11 || took[0].typ != TypeResync || took[1].id != messageID(h, head-9) {
			t.Fatalf("%d messages, the first %+v", len(took), took[0])
		}
		events := w.events(fleet.EventWebhookResync)
		if len(events) != 1 || events[0].Reason.Evidence != fmt.Sprintf("events %d to %d were missed", h.Cursor+1, head-10) {
			t.Errorf("events %+v", events)
		}
	})
}

func TestFiltersAndOwnEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		all, _ := w.hook()
		some, _, err := w.svc.Create(context.Background(), Request{
			URL: new("https://other.example"), Filter: &fleet.EventFilter{VM: "b", Types: []string{"vm.*"}}, Owner: "ann", Actor: "user:ann",
		})
		if err != nil {
			t.Fatal(err)
		}
		defer w.run()()
		a, b := w.emit("a", fleet.EventVMRunning), w.emit("b", fleet.EventVMRunning)
		<-time.After(time.Second)
		_, took := w.receiver.list()
		var ids []string
		for _, g := range took {
			ids = append(ids, g.id)
		}
		slices.Sort(ids)
		// The making of the second is an event of the first, its own is not.
		want := []string{messageID(all, some.Cursor+1), messageID(all, a), messageID(all, b), messageID(some, b)}
		slices.Sort(want)
		if !slices.Equal(ids, want) {
			t.Errorf("arrived %v, want %v", ids, want)
		}
	})
}

func TestDeliveryLogIsBoundedAndResends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		h, _ := w.hook("vm.*")
		w.receiver.body = "thank you\x1b[2J"
		stop := w.run()
		for range keptDone + 50 {
			w.emit("a", fleet.EventVMRunning)
			synctest.Wait()
		}
		list := w.deliveries(h.ID, "")
		if len(list) != keptDone || list[0].ID < list[1].ID || list[0].State != fleet.DeliveryDelivered || list[0].Status != 204 || list[0].Answer != "thank you [2J" {
			t.Fatalf("%d kept, the newest %+v", len(list), list[0])
		}
		page, more, err := w.svc.Deliveries(h.ID, list[9].ID, 10, fleet.DeliveryDelivered)
		if err != nil || !more || len(page) != 10 || page[0].ID != list[10].ID {
			t.Errorf("second page %d %v %v", len(page), more, err)
		}
		before, _ := w.receiver.list()
		if _, err := w.svc.Resend(context.Background(), h.ID, list[5].ID, "user:ann"); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		after, _ := w.receiver.list()
		if len(after) != len(before)+1 || after[len(after)-1].id != list[5].ID {
			t.Errorf("resend sent %d messages", len(after)-len(before))
		}
		if _, err := w.svc.Resend(context.Background(), h.ID, "msg_none", "user:ann"); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Error(err)
		}
		d, err := w.svc.Test(context.Background(), h.ID, "user:ann")
		if err != nil || d.State != fleet.DeliveryDelivered || d.Type != TypePing {
			t.Errorf("ping %+v %v", d, err)
		}
		w.receiver.set(down)
		if d, err = w.svc.Test(context.Background(), h.ID, "user:ann"); err != nil || d.State != fleet.DeliveryFailed || d.Error != errDown.Error() {
			t.Errorf("ping of one that is down %+v %v", d, err)
		}
		stop()
		if err := w.svc.Delete(context.Background(), h.ID, "user:ann"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.svc.Get(h.ID); fleet.CodeOf(err) != fleet.CodeNotFound {
			t.Error(err)
		}
		err = w.store.View(func(tx *state.ReadTx) error {
			if n := deliveries.Len(tx); n != 0 {
				t.Errorf("%d deliveries outlive their webhook", n)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

// A store that ends takes the sender with it, without a word of its own: why it
// ended is for others to say.
func TestRunEndsWithTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.hook("vm.*")
		done := make(chan error, 1)
		go func() { done <- w.svc.Run(t.Context()) }()
		synctest.Wait()
		if err := w.store.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil && !errors.Is(err, fleet.ErrNotLeader) {
			t.Errorf("run ended with %v", err)
		}
	})
}
