package golden

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

func shape(image, kernel string, ram int) driver.Shape {
	return driver.Shape{Image: image, Machine: fleet.MachineFacts{Kernel: kernel, RamMB: ram, CPUs: 1, PageSize: 4096}}
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(minutes int) time.Time { return epoch.Add(time.Duration(minutes) * time.Minute) }

func TestEvict(t *testing.T) {
	all := []Entry{
		{Key: "young", Shape: shape("a", "k2", 256), Bytes: 10, Used: at(9)},
		{Key: "old", Shape: shape("b", "k2", 256), Bytes: 10, Used: at(1)},
		{Key: "busy", Shape: shape("c", "k2", 256), Bytes: 10, Used: at(0), Busy: true},
		{Key: "superseded", Shape: shape("a", "k1", 256), Bytes: 10, Used: at(8)},
	}
	for name, tt := range map[string]struct {
		budget int64
		now    driver.Shape
		want   []string
	}{
		"all fit":                        {budget: 40, want: nil},
		"the oldest that is idle goes":   {budget: 30, want: []string{"old"}},
		"another kernel's goes anyway":   {budget: 40, now: shape("a", "k2", 256), want: []string{"superseded"}},
		"and first":                      {budget: 20, now: shape("a", "k2", 256), want: []string{"superseded", "old"}},
		"other memory is another shape":  {budget: 40, now: shape("a", "k2", 512), want: nil},
		"what is in use stays":           {budget: 0, want: []string{"old", "superseded", "young"}},
		"an unknown shape changes none":  {budget: 40, now: driver.Shape{}, want: nil},
		"another image is another shape": {budget: 40, now: shape("z", "k9", 256), want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, Evict(all, tt.budget, tt.now)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func entries(t *rapid.T) []Entry {
	n := rapid.IntRange(0, 12).Draw(t, "n")
	out := make([]Entry, n)
	for i := range out {
		out[i] = Entry{
			Key: fmt.Sprint(i), Bytes: rapid.Int64Range(0, 100).Draw(t, "bytes"), Used: at(rapid.IntRange(0, 20).Draw(t, "used")),
			Busy:  rapid.Bool().Draw(t, "busy"),
			Shape: shape(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "image"), rapid.SampledFrom([]string{"k1", "k2"}).Draw(t, "kernel"), 256),
		}
	}
	return out
}

// What stays fits, or is in use; nothing goes that need not; nothing goes
// before what was used earlier.
func TestEvictKeepsItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, budget := entries(t), rapid.Int64Range(0, 400).Draw(t, "budget")
		now := rapid.SampledFrom([]driver.Shape{{}, shape("a", "k2", 256)}).Draw(t, "now")
		gone := Evict(all, budget, now)
		var stay, idle int64
		latest := time.Time{}
		for _, e := range all {
			stale := now.Image != "" && e.Shape.Superseded(now)
			switch dropped := slices.Contains(gone, e.Key); {
			case dropped && e.Busy:
				t.Fatal("one in use goes")
			case dropped && !stale && e.Used.After(latest):
				latest = e.Used
			case !dropped && stale && !e.Busy:
				t.Fatal("one of another kernel stays")
			case !dropped:
				stay += e.Bytes
				if !e.Busy {
					idle += e.Bytes
				}
			}
		}
		if stay > budget && idle > 0 {
			t.Fatalf("%d stay of %d that are allowed, %d of them idle", stay, budget, idle)
		}
		for _, e := range all {
			if !slices.Contains(gone, e.Key) && !e.Busy && e.Used.Before(latest) {
				t.Fatal("one that was used later went first")
			}
		}
		if len(gone) > 0 { // giving the last one back breaks the bound, or it is stale
			last := all[slices.IndexFunc(all, func(e Entry) bool { return e.Key == gone[len(gone)-1] })]
			if !(now.Image != "" && last.Shape.Superseded(now)) && stay+last.Bytes <= budget {
				t.Fatal("one went for nothing")
			}
		}
	})
}

func TestUnloadKeepsItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all, budget := entries(t), rapid.Int64Range(0, 400).Draw(t, "budget")
		held := map[string]int64{}
		for _, e := range all {
			held[e.Key] = rapid.SampledFrom([]int64{0, 10, 50}).Draw(t, "held")
		}
		gone := Unload(all, held, budget)
		var stay, idle int64
		for _, e := range all {
			if slices.Contains(gone, e.Key) {
				if e.Busy || held[e.Key] == 0 {
					t.Fatal("one goes that is in use or has no memory")
				}
				continue
			}
			stay += held[e.Key]
			if !e.Busy {
				idle += held[e.Key]
			}
		}
		if stay > budget && idle > 0 {
			t.Fatalf("%d stay of %d", stay, budget)
		}
	})
}

func TestKeyIsTheShape(t *testing.T) {
	one, again := shape("a", "k", 1), shape("a", "k", 1)
	if one.Key() == shape("a", "k", 2).Key() || one.Key() != again.Key() {
		t.Error("keys do not tell shapes apart")
	}
}
