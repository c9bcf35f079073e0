package ops_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/ops"
	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestFlightReportsEveryStepToEveryone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := ops.NewFlight[int]()
		f.Step("early")
		type seen struct {
			steps []string
			ans   int
			err   error
		}
		got := make(chan seen, 2)
		for range 2 {
			go func() {
				var s seen
				s.ans, s.err = f.Wait(t.Context(), func(step string) error { s.steps = append(s.steps, step); return nil })
				got <- s
			}()
		}
		synctest.Wait()
		f.Step("middle")
		synctest.Wait()
		<-time.After(time.Second)
		f.Step("late")
		f.Land(7, nil)
		for range 2 {
			s := <-got
			if !slices.Equal(s.steps, []string{"early", "middle", "late"}) || s.ans != 7 || s.err != nil {
				t.Errorf("%+v", s)
			}
		}
		want := []fleet.StepTime{{Step: "early"}, {Step: "middle", Took: time.Second}, {Step: "late", Took: time.Minute}}
		if times := f.Times(time.Now().Add(time.Minute)); !slices.Equal(times, want) {
			t.Errorf("times %v", times)
		}
	})
}

func TestFlightGoesOnWithoutCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := ops.NewFlight[string]()
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		cancel(gone)
		if _, err := f.Wait(ctx, nil); !errors.Is(err, gone) {
			t.Errorf("a caller that left: %v", err)
		}
		f.Step("step")
		full := errors.New("stream is full")
		if _, err := f.Wait(t.Context(), func(string) error { return full }); !errors.Is(err, full) {
			t.Errorf("a caller that takes no reports: %v", err)
		}
		failed := errors.New("failed")
		f.Land("answer", failed)
		if a, err := f.Wait(t.Context(), nil); a != "answer" || !errors.Is(err, failed) {
			t.Errorf("%q, %v", a, err)
		}
	})
}

func TestSlotsAreLowestFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s ops.SlotSet
		used := map[int]bool{}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			if len(used) > 0 && rapid.IntRange(0, 2).Draw(t, "free") == 0 {
				var all []int
				for slot := range used {
					all = append(all, slot)
				}
				slices.Sort(all)
				slot := rapid.SampledFrom(all).Draw(t, "slot")
				s.Free(slot)
				delete(used, slot)
				continue
			}
			slot := s.Next()
			for lower := 1; lower < slot; lower++ {
				if !used[lower] {
					t.Fatalf("got %d while %d is free", slot, lower)
				}
			}
			if used[slot] || s.Taken(slot) {
				t.Fatalf("%d was given out twice", slot)
			}
			s.Take(slot)
			if !s.Taken(slot) {
				t.Fatalf("%d is not taken", slot)
			}
			used[slot] = true
		}
	})
}

func TestRecentIsBoundedAndAges(t *testing.T) {
	start := time.Unix(0, 0)
	r := ops.NewRecent[int](time.Hour, 3)
	for i, k := range []string{"a", "b", "c", "b", "d"} {
		r.Put(k, i, start.Add(time.Duration(i)*time.Minute))
	}
	all := func() (vs []int) { r.Each(func(v int) { vs = append(vs, v) }); return vs }
	if got := all(); !slices.Equal(got, []int{3, 2, 4}) { // b was replaced in its place, a is gone
		t.Errorf("kept %v", got)
	}
	if _, ok := r.Get("a"); ok {
		t.Error("the oldest is still there")
	}
	if v, ok := r.Get("b"); !ok || v != 3 {
		t.Errorf("b is %d, %v", v, ok)
	}
	r.Forget(start.Add(time.Hour + 90*time.Second)) // b came at one minute
	if got := all(); !slices.Equal(got, []int{2, 4}) {
		t.Errorf("after an hour: %v", got)
	}
	r.Forget(start.Add(24 * time.Hour))
	if got := all(); len(got) != 0 {
		t.Errorf("after a day: %v", got)
	}
}
