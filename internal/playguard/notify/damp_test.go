package notify

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

// TestDamp is the story of something that flaps.
func TestDamp(t *testing.T) {
	l := Limit{Most: 3, Window: time.Hour}
	var d Damp
	now := noon
	step := func(after time.Duration, s Sort, want bool) {
		t.Helper()
		now = now.Add(after)
		var send bool
		if d, send = d.Add(s, l, now); send != want {
			t.Errorf("%s at %s: sent %v, want %v (%+v)", s, now.Format("15:04"), send, want, d)
		}
	}
	digest := func(after time.Duration, want bool) {
		t.Helper()
		now = now.Add(after)
		var send bool
		if d, send = d.Digest(l, now); send != want {
			t.Errorf("digest at %s: %v, want %v (%+v)", now.Format("15:04"), send, want, d)
		}
	}
	step(0, Recovery, false) // of nothing that anybody was told of
	step(0, Problem, true)
	step(time.Minute, Recovery, true)
	step(time.Minute, Problem, true)
	step(time.Minute, Recovery, false)
	step(time.Minute, Problem, false)
	digest(50*time.Minute, false)
	digest(10*time.Minute, true) // two more, it is a problem now
	step(time.Minute, Recovery, false)
	digest(59*time.Minute, false)
	digest(2*time.Minute, true)
	if d.Open || d.Stale(l, now) {
		t.Errorf("%+v", d)
	}
	now = now.Add(2 * time.Hour)
	if !d.Stale(l, now) {
		t.Errorf("it is remembered for ever: %+v", d)
	}
	step(0, Problem, true)
	step(25*time.Hour, Recovery, true) // however late
	step(2*time.Hour, Problem, true)
	if d.Stale(l, now.Add(openMost-time.Minute)) || !d.Stale(l, now.Add(openMost)) {
		t.Error("a problem that never ends is not remembered for its time, or for ever")
	}
}

// TestDampProperties: in any window no more than Most messages go out, digests
// included; nothing that is held is forgotten, and whoever was told of a problem
// is told when it is over.
func TestDampProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := Limit{Most: rapid.IntRange(1, 5).Draw(t, "most"), Window: time.Hour}
		var d Damp
		var sent []time.Time
		now, held, open, told := noon, 0, false, false
		say := func(s Sort) {
			sent = append(sent, now)
			told = s == Problem
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			now = now.Add(rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 20 * time.Minute, 3 * time.Hour}).Draw(t, "gap"))
			if next, send := d.Digest(l, now); send {
				if d.Held != held || held == 0 {
					t.Fatalf("a digest of %d, %d were held", d.Held, held)
				}
				held = 0
				say(d.Now)
				d = next
			}
			s := rapid.SampledFrom([]Sort{Problem, Recovery, Notice}).Draw(t, "sort")
			before := d
			next, send := d.Add(s, l, now)
			d = next
			switch {
			case send:
				say(s)
			case next.Held > before.Held:
				held++
			case s != Recovery || open:
				t.Fatalf("a %s is neither sent nor held", s)
			}
			if s != Notice {
				open = s == Problem
			}
			if d.Open != open {
				t.Fatalf("open is %v, want %v", d.Open, open)
			}
			for i := range sent {
				if n := i + l.Most; n < len(sent) && sent[n].Sub(sent[i]) < l.Window {
					t.Fatalf("%d messages in %s", l.Most+1, sent[n].Sub(sent[i]))
				}
			}
		}
		now = now.Add(2 * l.Window)
		if next, send := d.Digest(l, now); send {
			say(d.Now)
			d, held = next, 0
		}
		if held > 0 || told && !open && d.Held == 0 && d.Now == Recovery {
			t.Fatalf("%d are held for ever, or the end is not told: %+v", held, d)
		}
	})
}
