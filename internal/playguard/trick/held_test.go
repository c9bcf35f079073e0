package trick_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/trick"
	"github.com/fusevm/fuse/internal/state"
)

// A schedule begins nothing in the name of somebody who may not any more, says so
// once, and goes on with what is due from then on when somebody may. What runs
// stays.
func TestASchedulesOwnerIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t)
		if _, err := d.AddSchedule(d.ctx, trick.NewSchedule{Request: trick.Request{Up: job("tick")}, Timing: trick.Timing{Cron: "*/10 * * * *", Concurrency: trick.Allow}}); err != nil {
			t.Fatal(err)
		}
		run := func(after time.Duration) { d.schedules(t, after) }
		begun := func() []string { return d.names(trick.ListOptions{Schedule: "tick"}) }
		run(11 * time.Minute)
		first := []string{"tick-20000101-001000"}
		if got := begun(); !slices.Equal(got, first) {
			t.Fatalf("%v", got)
		}
		d.gone["ann"] = true
		run(time.Hour)
		if got := begun(); !slices.Equal(got, first) {
			t.Errorf("it began %v for who is gone", got)
		}
		held, err := d.Schedule(context.Background(), "tick")
		if err != nil || held.Held.IsZero() || !held.Next.IsZero() || !strings.Contains(held.Trouble, "no API key") {
			t.Errorf("%+v %v", held, err)
		}
		if held, err = d.Pause(context.Background(), "tick", true); err != nil || !strings.Contains(held.Trouble, "no API key") {
			t.Errorf("paused, it hides why it was held: %q %v", held.Trouble, err)
		}
		if _, err = d.Pause(context.Background(), "tick", false); err != nil {
			t.Error(err)
		}
		told := 0
		all, err := d.store.Events(context.Background(), state.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			if e.Type == fleet.EventTrickScheduleFailed {
				told++
			}
		}
		if told != 1 {
			t.Errorf("it was told %d times", told)
		}
		delete(d.gone, "ann")
		run(5 * time.Minute)
		if got := begun(); !slices.Equal(got, first) {
			t.Errorf("it makes up for %v", got)
		}
		run(10 * time.Minute)
		if got, err := d.Schedule(d.ctx, "tick"); err != nil || len(begun()) != 2 || !got.Held.IsZero() || got.Trouble != "" {
			t.Errorf("it does not go on: %v %+v %v", begun(), got, err)
		}
	})
}
