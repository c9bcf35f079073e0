package trick

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/playguard/model"
)

var noon = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

func minutely(c Concurrency, within time.Duration) Timing {
	return Timing{Cron: "*/10 * * * *", Concurrency: c, StartWithin: within, KeepDone: 2, KeepFailed: 1}
}

func TestDecide(t *testing.T) {
	at := func(hhmm string) time.Time {
		v, err := time.Parse("15:04", hhmm)
		if err != nil {
			t.Fatal(err)
		}
		return noon.Truncate(24 * time.Hour).Add(time.Duration(v.Hour())*time.Hour + time.Duration(v.Minute())*time.Minute)
	}
	runs := func(over bool) []Run { return []Run{{ID: "a", Slot: at("11:50"), Over: over}} }
	for name, c := range map[string]struct {
		facts Facts
		want  Plan
	}{
		"not due":                {Facts{Now: at("12:03"), Timing: minutely(Forbid, 0), Last: at("12:00")}, Plan{Next: at("12:10")}},
		"due":                    {Facts{Now: at("12:10"), Timing: minutely(Forbid, 0), Last: at("12:00")}, Plan{Fire: at("12:10"), Next: at("12:20")}},
		"a little late":          {Facts{Now: at("12:13"), Timing: minutely(Forbid, 0), Last: at("12:00")}, Plan{Fire: at("12:10"), Next: at("12:20")}},
		"missed some":            {Facts{Now: at("12:43"), Timing: minutely(Forbid, 0), Last: at("12:00")}, Plan{Fire: at("12:40"), Missed: 3, Next: at("12:50")}},
		"too late":               {Facts{Now: at("12:43"), Timing: minutely(Forbid, time.Minute), Last: at("12:00")}, Plan{Missed: 4, Until: at("12:40"), Next: at("12:50")}},
		"paused":                 {Facts{Now: at("12:43"), Timing: minutely(Forbid, 0), Last: at("12:00"), Paused: true}, Plan{}},
		"forbid, one runs":       {Facts{Now: at("12:10"), Timing: minutely(Forbid, 0), Last: at("12:00"), Runs: runs(false)}, Plan{Waits: at("12:10"), Next: at("12:20")}},
		"forbid, it has ended":   {Facts{Now: at("12:14"), Timing: minutely(Forbid, 0), Last: at("12:00"), Runs: runs(true)}, Plan{Fire: at("12:10"), Next: at("12:20")}},
		"replace":                {Facts{Now: at("12:10"), Timing: minutely(Replace, 0), Last: at("12:00"), Runs: runs(false)}, Plan{Fire: at("12:10"), Cancel: []model.PlaygroundID{"a"}, Next: at("12:20")}},
		"allow":                  {Facts{Now: at("12:10"), Timing: minutely(Allow, 0), Last: at("12:00"), Runs: runs(false)}, Plan{Fire: at("12:10"), Next: at("12:20")}},
		"history":                {Facts{Now: at("12:03"), Timing: minutely(Allow, 0), Last: at("12:00"), Runs: []Run{{"a", at("11:10"), true, false}, {"b", at("11:20"), true, true}, {"c", at("11:30"), true, true}, {"d", at("11:40"), true, false}, {"e", at("11:50"), true, false}, {"f", at("12:00"), false, false}}}, Plan{Remove: []model.PlaygroundID{"b", "a"}, Next: at("12:10")}},
		"a clock that went back": {Facts{Now: at("11:00"), Timing: minutely(Allow, 0), Last: at("12:00")}, Plan{Next: at("11:10")}},
	} {
		if diff := cmp.Diff(c.want, Decide(c.facts)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Time zones: a run at half past two does not happen in the night in which that
// time is left out, and happens twice in the night that has it twice, as with
// Kubernetes. Who minds says UTC.
func TestZones(t *testing.T) {
	timing := Timing{Cron: "30 2 * * *", Zone: "Europe/Berlin", Concurrency: Allow}
	berlin, err := time.LoadLocation(timing.Zone)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		from time.Time
		want []string
	}{
		"spring": {time.Date(2026, 3, 28, 12, 0, 0, 0, berlin), []string{"2026-03-30T02:30:00+02:00", "2026-03-31T02:30:00+02:00"}},
		"autumn": {time.Date(2026, 10, 24, 12, 0, 0, 0, berlin), []string{"2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00"}},
	} {
		last, got := c.from, []string{}
		for now := c.from; len(got) < 2; now = now.Add(10 * time.Minute) {
			if p := Decide(Facts{Now: now, Timing: timing, Last: last}); !p.Fire.IsZero() {
				got, last = append(got, p.Fire.Format(time.RFC3339)), p.Fire
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestTimingCheck(t *testing.T) {
	good := minutely(Forbid, 0)
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Timing){
		"cron":        func(x *Timing) { x.Cron = "61 * * * *" },
		"six fields":  func(x *Timing) { x.Cron = "* * * * * *" },
		"empty":       func(x *Timing) { x.Cron = "" },
		"every":       func(x *Timing) { x.Cron = "@every 1s" },
		"zone inside": func(x *Timing) { x.Cron = "CRON_TZ=UTC * * * * *" },
		"zone":        func(x *Timing) { x.Zone = "Mars/Olympus" },
		"local":       func(x *Timing) { x.Zone = "Local" },
		"within":      func(x *Timing) { x.StartWithin = time.Second },
		"concurrency": func(x *Timing) { x.Concurrency = "maybe" },
		"history":     func(x *Timing) { x.KeepDone = -1 },
	} {
		x := good
		if change(&x); x.Check() == nil {
			t.Errorf("%s is taken: %+v", name, x)
		}
	}
}

// A scheduler that is asked at any times, and away at others, begins each run at
// most once, in order, never two at a time if that is forbidden, none later
// than it may be; what is neither begun nor waits was counted as missed.
func TestSchedulesProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		timing := minutely(rapid.SampledFrom([]Concurrency{Forbid, Replace, Allow}).Draw(t, "policy"), rapid.SampledFrom([]time.Duration{0, time.Minute, time.Hour}).Draw(t, "within"))
		now, last := noon, noon
		active := map[model.PlaygroundID]Run{}
		begun, missed := 0, 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 10 * time.Minute, 3 * time.Hour}).Draw(t, "gap"))
			for id := range active {
				if rapid.IntRange(0, 3).Draw(t, "ends") == 0 {
					delete(active, id)
				}
			}
			f := Facts{Now: now, Timing: timing, Last: last}
			for _, r := range active {
				f.Runs = append(f.Runs, r)
			}
			p := Decide(f)
			if !p.Next.After(now) {
				t.Fatalf("asked again at %s, now is %s", p.Next, now)
			}
			switch {
			case !p.Fire.IsZero():
				if !p.Fire.After(last) || p.Fire.After(now) || timing.StartWithin > 0 && now.Sub(p.Fire) > timing.StartWithin {
					t.Fatalf("begins %s at %s, the last was %s", p.Fire, now, last)
				}
				for _, id := range p.Cancel {
					delete(active, id)
				}
				if timing.Concurrency != Allow && len(active) > 0 {
					t.Fatal("two at a time")
				}
				id := model.PlaygroundID(p.Fire.Format("150405"))
				active[id] = Run{ID: id, Slot: p.Fire}
				last = p.Fire
				begun++
				missed += p.Missed
			case p.Missed > 0 && p.Waits.IsZero():
				last = p.Until
				missed += p.Missed
			}
		}
		if want := int(last.Sub(noon) / (10 * time.Minute)); begun+missed != want {
			t.Fatalf("%d begun and %d missed, of %d", begun, missed, want)
		}
	})
}
