package loop_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/runner"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/testkit"
)

// having are the lines of a text that have all of these words.
func having(text string, words ...string) (out []string) {
next:
	for line := range strings.Lines(text) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue next
			}
		}
		out = append(out, line)
	}
	return out
}

// An operation that was ended because its time was over is told of in the log, in an
// event and in the figures, once, whoever learns of it; one that failed, was cut, or
// waited too long for something within its time is not.
func TestAnOperationThatOverruns(t *testing.T) {
	const limit = 30 * time.Minute
	for name, c := range map[string]struct {
		after    time.Duration
		exit     int
		said     string
		takeover bool
		result   string // in the figures
		text     string // in the event; empty: there is none
	}{
		"who follows it learns of it":    {limit, decide.ExitLate, "runner: its time of 1800 s was over: what it waited for was ended", false, "timed_out", "runner: its time of 1800 s was over"},
		"a look of the next leader does": {limit, decide.ExitLate, "", true, "timed_out", "its time of 30m0s was over"},
		"nobody said a word":             {limit, decide.ExitLate, "", false, "timed_out", "its time of 30m0s was over"},
		"it failed":                      {limit, 1, "no such image", false, "failed", ""},
		"it was told to end":             {limit, 143, "runner: told to end", true, "failed", ""},
		"a container was late":           {2 * time.Minute, decide.ExitLate, "runner: failed to become healthy in time", false, "failed", ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, 1, func(w *world) {
				w.policy.UpTimeout = limit
				log, ups := new(testkit.Output), []string{}
				w.log = slog.New(slog.NewTextHandler(log, nil))
				w.ended = func(kind model.OpKind, result string) { // in the one writer
					if kind == model.OpUp {
						ups = append(ups, result)
					}
				}
				l, s := w.lead(1), w.sims["m0"]
				defer func() { l.stop() }()
				begun := s.begun
				s.begun = func(r runner.Request) {
					begun(r)
					if s.opTime = 3 * time.Second; r.Verb.Kind() == model.OpUp && len(s.started) == 1 {
						s.opTime = 2 * limit
					}
				}
				w.ask(l, "m0", pg, version("1"))
				pass(10 * time.Second) // up is under way
				if c.takeover {
					l.stop()
					l.stop = func() {}
				}
				pass(c.after)
				s.set(func(s *sim) {
					op := s.ops[s.order[len(s.order)-1]]
					if op.done || op.req.Verb.Kind() != model.OpUp {
						t.Fatalf("at work is %+v", op)
					}
					op.done, op.exit, op.text = true, c.exit, c.said
				})
				if c.takeover {
					l = w.lead(2)
				}
				pass(2 * time.Minute)
				if len(ups) == 0 || ups[0] != c.result {
					t.Errorf("ups ended with %v, the first with another than %q", ups, c.result)
				}
				var told []fleet.Event
				list, err := w.store.Events(context.Background(), state.EventQuery{})
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range list {
					if e.Type == fleet.EventPlaygroundOperationTimedOut {
						told = append(told, e)
					}
				}
				warned := having(log.String(), "level=WARN", "an operation passed its time limit and was ended", "playground=p1", "marquee=m0", "kind=up", "limit=30m0s")
				if c.text == "" {
					if len(told)+len(having(log.String(), "time limit")) != 0 {
						t.Errorf("told %+v, logged %q", told, having(log.String(), "time limit"))
					}
					return
				}
				if len(warned) != 1 || len(told) != 1 {
					t.Fatalf("told %+v, logged %q: want one of each", told, warned)
				}
				var p events.PlaygroundOperation
				if err := json.Unmarshal(told[0].Payload, &p); err != nil || p.Kind != "up" || p.Status != decide.ExitLate || p.Marquee != "m0" || !strings.HasPrefix(told[0].Error, c.text) {
					t.Errorf("%v: %q, %+v", err, told[0].Error, p)
				}
			})
		})
	}
}
