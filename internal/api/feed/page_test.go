package feed

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

func TestPages(t *testing.T) {
	w := newWorld(t, func(c *state.Config) { c.MaxEventsInMemory = 100 })
	for i := range 1300 {
		w.emit(fmt.Sprint("vm", i%3), fleet.EventVMRunning, []string{"ann", "bob"}[i%2])
	}
	newest := decode[gen.EventPage](t, w.get("/v1/events"))
	if !slices.Equal(eventIDs(newest.Events), upTo(1300)[1250:]) || newest.NextAfter != "1300" || newest.More {
		t.Errorf("newest %v next %s", eventIDs(newest.Events), newest.NextAfter)
	}
	if got := decode[gen.EventPage](t, w.get("/v1/events?vm=vm0&limit=2")); !slices.Equal(eventIDs(got.Events), []string{"1297", "1300"}) {
		t.Errorf("newest of one environment %v", eventIDs(got.Events))
	}
	for _, as := range []string{"", "ann"} {
		var got []string
		after, pages := "0", 0
		for more := true; more; pages++ {
			page := decode[gen.EventPage](t, w.get("/v1/events?limit=200&after="+after, "As", as))
			got = append(got, eventIDs(page.Events)...)
			if page.Resync {
				t.Error("nothing is missing")
			}
			after, more = page.NextAfter, page.More
		}
		want := upTo(1300)
		if as != "" {
			want = slices.DeleteFunc(want, func(id string) bool { n, _ := fleet.ParseEventID(id); return n%2 == 0 })
		}
		if !slices.Equal(got, want) || after != "1300" {
			t.Errorf("as %q: %d events in %d pages up to %s, want %d", as, len(got), pages, after, len(want))
		}
	}
	if _, err := w.store.PurgeEvents(t.Context(), time.Time{}, 10); err != nil {
		t.Fatal(err)
	}
	got := decode[gen.EventPage](t, w.get("/v1/events?after=5"))
	if !got.Resync || !slices.Equal(eventIDs(got.Events), upTo(1300)[1290:]) {
		t.Errorf("after a gap %v %v", got.Resync, eventIDs(got.Events))
	}
	if got := decode[gen.EventPage](t, w.get("/v1/events?after=9999")); !got.Resync || got.NextAfter != "1300" || got.More {
		t.Errorf("above the head %+v", got)
	}
	for _, bad := range []string{"?since=yesterday", "?type=VM", "?entity=/"} {
		if rec := w.get("/v1/events" + bad); rec.Code != 400 {
			t.Errorf("%s: %d", bad, rec.Code)
		}
	}
}

func TestPageSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		start := time.Now()
		for range 50 {
			w.emit("a", fleet.EventVMRunning, "ann")
			<-time.After(time.Minute)
		}
		for minutes := range 52 {
			at := start.Add(time.Duration(minutes) * time.Minute).UTC().Format(time.RFC3339)
			got := decode[gen.EventPage](t, w.get("/v1/events?since="+at))
			if want := upTo(50)[min(minutes, 50):]; !slices.Equal(eventIDs(got.Events), want) {
				t.Fatalf("since minute %d: %v", minutes, eventIDs(got.Events))
			}
		}
	})
}

func TestHistory(t *testing.T) {
	w := newWorld(t)
	live := fleet.VM{ID: "fuse-job", UID: "01A", TaskID: "job", Owner: "ann", HostID: "h1", State: fleet.VMStateProvisioning}
	w.update(func(tx *state.Tx) error {
		if err := tx.PutHost(fleet.Host{ID: "h1", State: fleet.HostActive, Capacity: fleet.HostCapacity{CPUs: 9, RamMB: 9000, StorageGB: 90, VMCount: 9}}); err != nil {
			return err
		}
		tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: live.ID, UID: live.UID, Type: fleet.EventVMProvisioning, State: live.State,
			Reason: &fleet.Reason{Actor: "user:ann", Rule: fleet.RuleRequested}})
		return tx.PutVM(live)
	})
	w.update(func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: fleet.EntityHost, EntityID: "h1", Type: fleet.EventHostUnreachable})
		return nil
	})
	h := decode[gen.History](t, w.get("/v1/environments/fuse-job/history", "As", "ann"))
	if h.UID != "01A" || h.State != "provisioning" || len(h.Facts) != 2 || h.Facts[0].Text != "Asked for by ann" || h.Facts[1].Type != fleet.EventHostUnreachable ||
		len(h.Lives) != 1 || h.Incomplete || h.Next == "" {
		t.Errorf("alive: %+v", h)
	}
	if h := decode[gen.History](t, w.get("/v1/environments/job/history")); h.ID != "fuse-job" {
		t.Errorf("by task: %+v", h)
	}
	// It ends, and somebody else has the id next.
	reason := fleet.Reason{Actor: "user:ann", Rule: fleet.RuleManualDestroy}
	w.update(func(tx *state.Tx) error {
		if err := tx.DeleteVM(live.ID); err != nil {
			return err
		}
		tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: live.ID, UID: live.UID, Type: fleet.EventVMRemoved, State: fleet.VMStateDestroyed, Reason: &reason})
		if err := tx.PutStartupLog(fleet.StartupLog{UID: live.UID, ExitCode: 2, EndedAt: tx.Now()}); err != nil {
			return err
		}
		return tx.PutLife(fleet.Life{UID: "01A", VMID: live.ID, TaskID: "job", Owner: "ann", HostID: "h1", State: fleet.VMStateDestroyed, Reason: reason, CreatedAt: live.CreatedAt})
	})
	h = decode[gen.History](t, w.get("/v1/environments/fuse-job/history", "As", "ann"))
	if h.State != "destroyed" || h.EndedAt.IsZero() || len(h.Facts) != 4 {
		t.Errorf("ended: %+v", h)
	}
	next := live
	next.UID, next.Owner = "01B", "bob"
	w.update(func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: next.ID, UID: next.UID, Type: fleet.EventVMProvisioning, State: next.State})
		return tx.PutVM(next)
	})
	for _, c := range []struct {
		as, query, uid string
		lives          int
	}{
		{"", "", "01B", 2},
		{"", "?uid=01A", "01A", 2},
		{"", "?uid=01B", "01B", 2},
		{"bob", "", "01B", 1},
		{"bob", "?uid=01A", "", 0}, // not his life
		{"ann", "", "01A", 1},
		{"ann", "?uid=01B", "", 0},
		{"carl", "", "", 0},
		{"", "?uid=01C", "", 0},
	} {
		rec := w.get("/v1/environments/fuse-job/history"+c.query, "As", c.as)
		if c.uid == "" {
			if rec.Code != 404 {
				t.Errorf("%+v: %d", c, rec.Code)
			}
			continue
		}
		if h := decode[gen.History](t, rec); h.UID != c.uid || len(h.Lives) != c.lives {
			t.Errorf("%+v: %s with %d lives", c, h.UID, len(h.Lives))
		}
	}
}

// A life whose record is gone is told from its events.
func TestHistoryOutlivesTheRecord(t *testing.T) {
	w := newWorld(t)
	reason := fleet.Reason{Actor: fleet.ActorReconcile, Rule: fleet.RuleIdleTimeout, Evidence: "no exec for 10 m"}
	for _, uid := range []string{"01A", "01B"} {
		w.update(func(tx *state.Tx) error {
			tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: "fuse-a", UID: uid, Type: fleet.EventVMProvisioning, State: fleet.VMStateProvisioning, Owner: "ann"})
			tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: "fuse-a", UID: uid, Type: fleet.EventVMRemoved, State: fleet.VMStateDestroyed, Owner: "ann", Reason: &reason})
			return nil
		})
	}
	for query, uid := range map[string]string{"": "01B", "?uid=01A": "01A"} {
		h := decode[gen.History](t, w.get("/v1/environments/fuse-a/history"+query, "As", "ann"))
		if h.UID != uid || h.State != "destroyed" || len(h.Facts) != 2 || !strings.Contains(h.Summary, "nobody had used it") {
			t.Errorf("%q: %+v", query, h)
		}
	}
	w.update(func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: "fuse-lost", UID: "01C", HostID: "h1", Type: fleet.EventVMOrphanDestroy,
			Reason: &fleet.Reason{Actor: fleet.ActorReconcile, Rule: fleet.RuleOrphan, Evidence: "look 7 lists it"}})
		return nil
	})
	if h := decode[gen.History](t, w.get("/v1/environments/fuse-lost/history")); h.HostID != "h1" || !strings.Contains(h.Summary, "no record of this fleet tracks it") {
		t.Errorf("an orphan: %+v", h)
	}
	if rec := w.get("/v1/environments/fuse-lost/history", "As", "ann"); rec.Code != 404 {
		t.Errorf("an orphan is nobody's: %d", rec.Code)
	}
	w.update(func(tx *state.Tx) error {
		tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: "fuse-a", UID: "01D", Type: fleet.EventVMRemoved, State: fleet.VMStateDestroyed, Owner: "cid", Reason: &reason})
		return nil
	})
	for as, uid := range map[string]string{"ann": "01B", "cid": "01D"} {
		if h := decode[gen.History](t, w.get("/v1/environments/fuse-a/history", "As", as)); h.UID != uid || h.CreatedAt.IsZero() {
			t.Errorf("%s, of an id that was another's too: %+v", as, h)
		}
	}
	if rec := w.get("/v1/environments/fuse-a/history?uid=01B", "As", "cid"); rec.Code != 404 {
		t.Errorf("another's life by its uid: %d", rec.Code)
	}
	if rec := w.get("/v1/environments/fuse-a/history", "As", "bob"); rec.Code != 404 {
		t.Errorf("somebody else: %d", rec.Code)
	}
}

// A life that was retried for days has a history of bounded length, whose end
// is there.
func TestHistoryIsBounded(t *testing.T) {
	w := newWorld(t)
	w.update(func(tx *state.Tx) error {
		for range 2500 {
			tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: "fuse-a", UID: "01A", Type: fleet.EventVMDestroyRetried})
		}
		tx.Emit(fleet.Event{EntityType: fleet.EntityVM, EntityID: "fuse-a", UID: "01A", Type: fleet.EventVMRemoved, State: fleet.VMStateDestroyed})
		return tx.PutLife(fleet.Life{UID: "01A", VMID: "fuse-a", State: fleet.VMStateDestroyed})
	})
	h := decode[gen.History](t, w.get("/v1/environments/fuse-a/history"))
	if len(h.Facts) != firstFacts+lastFacts || h.Facts[0].EventID != "1" || h.Facts[len(h.Facts)-1].Type != fleet.EventVMRemoved {
		t.Errorf("%d facts", len(h.Facts))
	}
}
