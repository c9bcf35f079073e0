package trick_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/playguard/trick"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/storetest"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// desk is the service of tricks on a store, with a loop that does not run: what
// is asked for stays pending.
type desk struct {
	*trick.Service
	t     *testing.T
	store *state.Store
	ctx   context.Context // of ann, a user
	gone  map[string]bool // owners for whom nobody can act
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, gone: map[string]bool{}, ctx: auth.With(context.Background(), auth.Principal{Name: "ann", Role: fleet.RoleUser})}
	store, sealer := storetest.OpenSealed(t)
	policy, inst, log := model.DefaultPolicy(), records.Installation(store.FleetID()), slog.New(slog.DiscardHandler)
	hosts := &reach.Hosts{Pool: sshx.NewPool(sshx.Timeouts{}), Sealer: sealer, Installation: inst}
	l := loop.New(loop.Config{Store: store, Policy: policy, Logger: log, Host: func(m records.Marquee) work.Host { return hosts.Host(m) },
		Worker: work.New(work.Config{Store: store, Sealer: sealer, Installation: inst, Policy: policy, Logger: log, Lease: func() (time.Duration, error) { return time.Hour, nil }})})
	svc, err := service.New(service.Config{Store: store, Sealer: sealer, Loop: l, Hosts: hosts, Installation: inst, Policy: policy, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	tricks, err := trick.New(trick.Config{Playguard: svc, Store: store, Hosts: hosts, Sealer: sealer, Logger: log, Acting: func(state.Reader) func(string, fleet.Role) bool {
		return func(owner string, least fleet.Role) bool { return !d.gone[owner] && least == fleet.RoleUser }
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(hosts.Pool.Close)
	d.Service, d.store = tricks, store
	d.update(func(tx *state.Tx) error {
		return records.PutMarquee(tx, records.Marquee{Name: "box", Marquee: model.Marquee{ID: "m1", Address: "box:22", Root: "/opt/fuse", Admin: model.AdminActive, Reach: model.ReachOK}})
	})
	return d
}

func (d *desk) update(fn func(tx *state.Tx) error) {
	d.t.Helper()
	if _, err := d.store.Update(context.Background(), fn); err != nil {
		d.t.Fatal(err)
	}
}

func job(name string) service.UpRequest {
	return service.UpRequest{Name: name, Files: []service.File{{Path: "compose.yaml", Data: []byte("services:\n  job:\n    image: x\n    environment: {KEY: \"${KEY}\"}\n")}}, Variables: map[string]string{"KEY": "s3cret-value"}}
}

// finish ends every trick that is not at its end, as the loop would.
func (d *desk) finish(code int) {
	d.t.Helper()
	d.update(func(tx *state.Tx) error {
		for _, row := range records.Of(tx, "m1") {
			if row.Trick == nil || !row.Trick.Open() {
				continue
			}
			p := *row
			k := p.Trick.Closed(model.Attempt{Code: code, At: tx.Now(), Logs: model.LogsKept})
			p.Trick, p.State = &k, model.StateCompleted
			if err := records.PutPlayground(tx, p); err != nil {
				return err
			}
		}
		return nil
	})
}

// schedules runs what begins scheduled tricks, for a while.
func (d *desk) schedules(t *testing.T, after time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.RunSchedules(ctx) }()
	<-time.After(after)
	synctest.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func (d *desk) names(o trick.ListOptions) (names []string) {
	d.t.Helper()
	page, err := d.List(d.ctx, o)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, p := range page.Items {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

// What is asked for is checked, and a trick is begun once.
func TestRun(t *testing.T) {
	d := newDesk(t)
	p, err := d.Run(d.ctx, trick.Request{Up: job("backup")})
	if err != nil {
		t.Fatal(err)
	}
	if k := p.Trick; p.Intent != model.IntentJob || p.State != model.StatePending || !slices.Equal(k.Watch, []string{"job"}) || k.Attempt != 1 || k.Deadline != time.Hour {
		t.Errorf("%+v %+v", p, k)
	}
	if _, err := d.Run(d.ctx, trick.Request{Up: job("backup")}); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("it is begun again: %v", err)
	}
	if _, err := d.Playguard.Up(d.ctx, job("backup")); fleet.CodeOf(err) != fleet.CodeConflict {
		t.Errorf("an up makes a playground of it: %v", err)
	}
	for _, a := range []model.Action{model.ActionStop, model.ActionStart, model.ActionRollout, model.ActionHardRestart} {
		if _, err := d.Playguard.Act(d.ctx, "backup", service.ActionRequest{Action: a}); fleet.CodeOf(err) != fleet.CodeConflict {
			t.Errorf("%s of a trick: %v", a, err)
		}
	}
	for name, l := range map[string]trick.Limits{
		"retries": {Retries: 11}, "negative": {Retries: -1}, "backoff": {Backoff: time.Millisecond}, "deadline": {Deadline: 8 * 24 * time.Hour}, "keep": {Keep: time.Second},
	} {
		if _, err := d.Run(d.ctx, trick.Request{Up: job("x"), Limits: l}); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	bob := auth.With(context.Background(), auth.Principal{Name: "bob", Role: fleet.RoleUser})
	if _, err := d.Cancel(bob, string(p.ID)); fleet.CodeOf(err) != fleet.CodeNotFound {
		t.Errorf("bob cancels it: %v", err)
	}
	if p, err = d.Cancel(d.ctx, "backup"); err != nil || p.Trick.Ending != model.TrickCancelled {
		t.Errorf("%+v %v", p.Trick, err)
	}
}

// A schedule begins a trick at each of its times, none while one still runs, and
// of those that were due while nobody was there the last one only; a scheduler
// that comes back begins nothing twice, and history is kept within bounds.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		s, err := d.AddSchedule(d.ctx, trick.NewSchedule{Request: trick.Request{Up: job("tick")}, Timing: trick.Timing{Cron: "*/10 * * * *", KeepDone: 2, KeepFailed: 1}})
		if err != nil || s.Concurrency != trick.Forbid {
			t.Fatal(s, err)
		}
		run := func(after time.Duration) { d.schedules(t, after) }
		run(25 * time.Minute) // 00:10, and 00:20 waits
		if got := d.names(trick.ListOptions{Schedule: "tick"}); !slices.Equal(got, []string{"tick-20000101-001000"}) {
			t.Fatalf("%v", got)
		}
		d.finish(0)
		run(2 * time.Minute) // 00:20, late
		run(2 * time.Minute) // again, by another scheduler
		if got := d.names(trick.ListOptions{Schedule: "tick"}); !slices.Equal(got, []string{"tick-20000101-001000", "tick-20000101-002000"}) {
			t.Fatalf("%v", got)
		}
		d.finish(1)
		<-time.After(3 * time.Hour) // nobody is there
		run(time.Minute)
		if got := d.names(trick.ListOptions{Schedule: "tick", Active: true}); len(got) != 1 || !strings.HasPrefix(got[0], "tick-20000101-03") {
			t.Errorf("after it was away: %v", got)
		}
		missed := 0
		all, err := d.store.Events(context.Background(), state.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			if e.Type == fleet.EventTrickScheduleMissed {
				missed++
			}
			if strings.Contains(string(e.Payload), "s3cret-value") {
				t.Error("a value is told in an event")
			}
		}
		if missed != 1 {
			t.Errorf("%d times it was said that runs were missed", missed)
		}
		for range 5 {
			d.finish(0)
			run(11 * time.Minute)
		}
		gone := 0
		for _, p := range d.names(trick.ListOptions{Schedule: "tick"}) {
			if k, err := d.Get(d.ctx, p); err != nil {
				t.Error(err)
			} else if k.State == model.StateDestroying {
				gone++
			}
		}
		if gone < 3 {
			t.Errorf("only %d of the old ones go", gone)
		}
		if got, err := d.Pause(d.ctx, "tick", true); err != nil || !got.Next.IsZero() {
			t.Errorf("%+v %v", got, err)
		}
		n := len(d.names(trick.ListOptions{Schedule: "tick"}))
		run(time.Hour)
		if got := len(d.names(trick.ListOptions{Schedule: "tick"})); got != n {
			t.Error("a paused schedule begins tricks")
		}
		if err := d.RemoveSchedule(d.ctx, "tick"); err != nil {
			t.Error(err)
		}
	})
}

// A run whose name is taken is not taken for begun, and not tried for ever: it is
// missed, and said so, and the next one begins.
func TestTheNameOfARunIsTaken(t *testing.T) {
	for what, take := range map[string]func(d *desk) error{
		"by a playground": func(d *desk) error {
			_, err := d.Playguard.Up(d.ctx, job("tick-20000101-001000"))
			return err
		},
		"by a trick of nobody's": func(d *desk) error {
			_, err := d.Run(d.ctx, trick.Request{Up: job("tick-20000101-001000")})
			return err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := newDesk(t)
			s, err := d.AddSchedule(d.ctx, trick.NewSchedule{Request: trick.Request{Up: job("tick")}, Timing: trick.Timing{Cron: "10 * * * *"}})
			if err != nil {
				t.Fatal(err)
			}
			if err := take(d); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- d.RunSchedules(ctx) }()
			<-time.After(11 * time.Minute)
			synctest.Wait()
			if got, err := d.Schedule(d.ctx, s.ID); err != nil || got.Trouble == "" || !got.Fired.IsZero() {
				t.Errorf("%s: trouble %q, begun %s, %v", what, got.Trouble, got.Fired, err)
			}
			<-time.After(time.Hour)
			synctest.Wait()
			if got, err := d.Schedule(d.ctx, s.ID); err != nil || got.Trouble != "" || got.Trick == "" {
				t.Errorf("%s: an hour later: trouble %q, trick %q, %v", what, got.Trouble, got.Trick, err)
			}
			all, err := d.store.Events(context.Background(), state.EventQuery{})
			if err != nil || !slices.ContainsFunc(all, func(e fleet.Event) bool { return e.Type == fleet.EventTrickScheduleMissed }) {
				t.Errorf("%s: nobody is told that it was missed: %v", what, err)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// An end is set, extended and taken away; a parked playground that is given time
// runs again.
func TestExtend(t *testing.T) {
	d := newDesk(t)
	svc := d.Playguard
	if _, err := service.SetDefaultExpiry(context.Background(), svc, "box", "3d"); err != nil {
		t.Fatal(err)
	}
	p, err := svc.Up(d.ctx, job("shop"))
	if err != nil || time.Until(p.Expiry.At) < 71*time.Hour || time.Until(p.Expiry.At) > 72*time.Hour {
		t.Fatal(p.Expiry, err)
	}
	if own, err := svc.Up(d.ctx, service.UpRequest{Name: "own", Files: job("x").Files, Variables: job("x").Variables, Expires: "never"}); err != nil || !own.Expiry.IsZero() {
		t.Errorf("%v %v", own.Expiry, err)
	}
	d.update(func(tx *state.Tx) error {
		row, _ := records.Playgrounds.Get(tx, string(p.ID))
		q := *row
		q.State, q.Expiry.At, q.Expiry.Warned = model.StateHasChanges, time.Now().Add(-time.Hour), time.Hour
		return records.PutPlayground(tx, q)
	})
	if p, err = service.Extend(d.ctx, svc, "shop", "24h"); err != nil || p.State != model.StateRunning || p.Expiry.Warned != 0 || time.Until(p.Expiry.At) < 23*time.Hour {
		t.Errorf("%s %+v %v", p.State, p.Expiry, err)
	}
	if p, err = service.Extend(d.ctx, svc, "shop", "2d"); err != nil || time.Until(p.Expiry.At) < 71*time.Hour {
		t.Errorf("%+v %v", p.Expiry, err)
	}
	for _, bad := range []string{"", "soon", "1s", "-3h", "9999d", "2001-01-01T00:00:00Z"} {
		if _, err := service.Extend(d.ctx, svc, "shop", bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if p, err = service.Extend(d.ctx, svc, "shop", "never"); err != nil || !p.Expiry.IsZero() {
		t.Errorf("%+v %v", p.Expiry, err)
	}
}
