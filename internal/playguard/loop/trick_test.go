package loop_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
)

// What an earlier attempt of a trick left is taken away once: a job that takes up
// the attempt takes nothing of its own away.
func TestAnAttemptIsClearedOnce(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l := w.lead(1)
		w.ask(l, "m0", pg, version("1"))
		pass(settle)
		w.want(pg, model.StateRunning)
		l.stop() // jobs are begun by hand from here on
		m := w.row("m0")
		site := work.Site{Marquee: m.ID, Pin: m.Identity, Host: w.sims["m0"], Epoch: m.Term.Epoch, Ops: make(chan struct{}, 1)}
		again := func(attempt int) []string {
			w.update(func(tx *state.Tx) error {
				row, _ := records.Playgrounds.Get(tx, string(pg))
				p := *row
				k := model.Trick{Watch: []string{"web"}}
				if p.Trick != nil {
					k = *p.Trick
				}
				k.Attempt = attempt
				p.Trick, p.Intent, p.State, p.Owed, p.Job = &k, model.IntentJob, model.StatePending, model.ActionRetryCompose, ""
				return records.PutPlayground(tx, p)
			})
			before := len(w.sims["m0"].ran())
			if err := l.Worker.Job(context.Background(), site, pg); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
			return w.sims["m0"].ran()[before:]
		}
		for _, c := range []struct {
			attempt int
			want    []string
		}{
			{1, []string{"files 1", "up 1"}}, {2, []string{"files 1", "down 1", "up 1"}}, {2, []string{"files 1", "up 1"}}, {3, []string{"files 1", "down 1", "up 1"}},
		} {
			if got := again(c.attempt); !slices.Equal(got, c.want) {
				t.Errorf("attempt %d: %v, want %v", c.attempt, got, c.want)
			}
		}
	})
}
