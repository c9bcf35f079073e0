package feed

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestStreamHasWhatIsToCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.emit("a", fleet.EventVMRunning, "ann")
		ctx, cancel := context.WithCancel(t.Context())
		f := &reader{}
		done := w.open(ctx, "/v1/events", "", f)
		synctest.Wait()
		if f.text() != ": connected\n\n" || f.header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("at once %q with %v", f.text(), f.header)
		}
		id := w.emit("a", fleet.EventVMRemoved, "ann")
		synctest.Wait()
		got := f.messages(t)
		if len(got) != 1 || got[0].id != id || got[0].event != fleet.EventVMRemoved || !strings.Contains(string(got[0].data), `"owner":"ann"`) {
			t.Errorf("got %+v", got)
		}
		cancel()
		<-done
	})
}

func TestStreamFiltersAndOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		start := time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		streams := map[string]*reader{}
		var ends []<-chan struct{}
		for _, path := range []string{
			"/v1/events", "/v1/events?type=vm.*", "/v1/events?type=task.failed,vm.removed", "/v1/events?vm=b", "/v1/events?entity=host/h1",
			"/v1/events?owner=ann", "/v1/events?since=" + start.Add(time.Hour).UTC().Format(time.RFC3339),
		} {
			for _, as := range []string{"", "ann", "bob"} {
				f := &reader{}
				streams[as+path] = f
				ends = append(ends, w.open(ctx, path, "0", f, "As", as))
			}
		}
		w.emit("a", fleet.EventVMRunning, "ann") // 1
		w.emit("b", fleet.EventVMRunning, "bob") // 2
		w.update(func(tx *state.Tx) error {      // 3, 4
			tx.Emit(fleet.Event{EntityType: fleet.EntityHost, EntityID: "h1", Type: fleet.EventHostCordoned})
			tx.Emit(fleet.Event{EntityType: fleet.EntityTask, EntityID: "t", VMID: "b", Type: fleet.EventTaskFailed, Owner: "bob"})
			return nil
		})
		<-time.After(2 * time.Hour)
		w.emit("a", fleet.EventVMRemoved, "ann") // 5
		synctest.Wait()
		since := "/v1/events?since=" + start.Add(time.Hour).UTC().Format(time.RFC3339)
		for name, want := range map[string]string{
			"/v1/events": "1 2 3 4 5", "ann/v1/events": "1 5", "bob/v1/events": "2 4",
			"/v1/events?type=vm.*": "1 2 5", "ann/v1/events?type=vm.*": "1 5",
			"/v1/events?type=task.failed,vm.removed": "4 5", "bob/v1/events?type=task.failed,vm.removed": "4",
			"/v1/events?vm=b": "2 4", "ann/v1/events?vm=b": "", "bob/v1/events?vm=b": "2 4",
			"/v1/events?entity=host/h1": "3", "ann/v1/events?entity=host/h1": "",
			"/v1/events?owner=ann": "1 5", "ann/v1/events?owner=ann": "1 5", "bob/v1/events?owner=ann": "",
			since: "5", "ann" + since: "5", "bob" + since: "",
		} {
			if got := strings.Join(streams[name].ids(t), " "); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		cancel()
		for _, end := range ends {
			<-end
		}
	})
}

// From whatever id a stream is resumed, it has exactly what the log has after
// it, or says that something is missing.
func TestResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *state.Config) { c.MaxEventsInMemory = 10 })
		for range 600 {
			w.emit("a", fleet.EventVMRunning, "ann")
		}
		if _, err := w.store.PurgeEvents(t.Context(), time.Time{}, 500); err != nil {
			t.Fatal(err)
		}
		all := upTo(600)
		for last, want := range map[string][]string{
			"":       nil,
			"0":      all[100:],
			"1":      append([]string{"resync 100"}, all[100:]...),
			"99":     append([]string{"resync 100"}, all[100:]...),
			"100":    all[100:],
			"101":    all[101:],
			"599":    all[599:],
			"600":    nil,
			"601":    {"resync 600"},
			"a-word": {"resync 600"},
		} {
			ctx, cancel := context.WithCancel(t.Context())
			f := &reader{}
			done := w.open(ctx, "/v1/events", last, f)
			synctest.Wait()
			if got := f.ids(t); !slices.Equal(got, want) {
				t.Errorf("from %q: %d messages %v …, want %d", last, len(got), got[:min(2, len(got))], len(want))
			}
			cancel()
			<-done
		}
	})
}

func TestKeepAliveTellsHowFarItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		f := &reader{}
		done := w.open(ctx, "/v1/events?vm=b", "", f)
		synctest.Wait()
		last := w.emit("a", fleet.EventVMRunning, "ann")
		<-time.After(31 * time.Second)
		synctest.Wait()
		want := ": connected\n\n: keepalive\n\nid: " + last + "\n\n: keepalive\n\n"
		if f.text() != want {
			t.Errorf("got %q, want %q", f.text(), want)
		}
		cancel()
		<-done
	})
}

// A reader that takes nothing delays nobody, costs no more than its buffer and
// then reads what it missed in the log.
func TestSlowReaderDelaysNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(c *state.Config) { c.WatchBuffer = 4 })
		ctx, cancel := context.WithCancel(t.Context())
		slow, quick := &reader{gate: make(chan struct{})}, &reader{}
		ends := []<-chan struct{}{w.open(ctx, "/v1/events", "", slow), w.open(ctx, "/v1/events", "", quick)}
		slow.gate <- struct{}{} // it is connected
		synctest.Wait()
		for range 500 {
			w.emit("a", fleet.EventVMRunning, "ann")
			synctest.Wait()
		}
		if got := quick.ids(t); !slices.Equal(got, upTo(500)) {
			t.Errorf("the quick one has %d", len(got))
		}
		close(slow.gate)
		synctest.Wait()
		if got := slow.ids(t); !slices.Equal(got, upTo(500)) {
			t.Errorf("the slow one has %d", len(got))
		}
		if w.lagged == 0 {
			t.Error("it never lagged, so this showed nothing")
		}
		cancel()
		for _, end := range ends {
			<-end
		}
	})
}

func TestStreamsEndWithTheServer(t *testing.T) {
	w := newWorld(t)
	f := &reader{}
	done := w.open(t.Context(), "/v1/events", "", f)
	w.streams.End()
	<-done
}

// A client whose connection breaks at random instants sees every event once.
func TestReconnectLosesAndRepeatsNothing(t *testing.T) {
	w := newWorld(t)
	ts := httptest.NewServer(w)
	defer ts.Close()
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	cuts := &testkit.CutTransport{Most: 12_000}
	api, err := client.New(ts.URL, client.Options{Transport: cuts})
	if err != nil {
		t.Fatal(err)
	}
	const n = 400
	enough := errors.New("enough")
	var got []string
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- client.NewFeed(api).Follow(t.Context(), gen.ListEventsParams{After: new("0")}, func(e gen.Event) error {
			if got = append(got, e.ID); len(got) == 1 {
				close(started)
			}
			if e.Type == fleet.EventVMRemoved {
				return enough
			}
			return nil
		})
	}()
	w.emit("a", fleet.EventVMProvisioning, "ann")
	<-started
	for i := range n {
		w.emit(fmt.Sprint("vm", i), fleet.EventVMRunning, "ann")
	}
	w.emit("a", fleet.EventVMRemoved, "ann")
	if err := <-ended; !errors.Is(err, enough) {
		t.Fatal(err)
	}
	if !slices.Equal(got, upTo(n+2)) {
		t.Errorf("got %d events, want %d", len(got), n+2)
	}
	if cuts.Cuts.Load() < 5 {
		t.Errorf("only %d connections were cut", cuts.Cuts.Load())
	}
	w.streams.End()
}
