package loop_test

import (
	"slices"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/state"
)

// What was decided outlives the process that decided it, is no more than the last
// of it, and goes with the playground.
func TestDecisionsOutliveTheirProcess(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l := w.lead(1)
		w.ask(l, "m0", pg, version("1"))
		pass(settle)
		w.want(pg, model.StateRunning)
		for range 15 { // each a stop and a start
			w.act(l, pg, model.ActionStop)
			pass(settle)
			w.act(l, pg, model.ActionStart)
			pass(settle)
		}
		pass(2 * time.Minute)
		rules := func(list []loop.Decision) (out []string) {
			for _, d := range list {
				out = append(out, d.Rule+" "+d.Act)
			}
			return out
		}
		before := l.Decisions(pg)
		l.stop()
		l = w.lead(2)
		if after := l.Decisions(pg); len(after) != 20 || !slices.Equal(rules(after), rules(before)) {
			t.Errorf("before its first look the next process knows %v\nit was %v", rules(after), rules(before))
		}
		pass(2 * time.Minute)
		after := l.Decisions(pg)
		if after[0].Epoch != 2 || after[0].Rule != string(decide.RuleConverged) || !slices.Equal(rules(after)[1:], rules(before)[:19]) {
			t.Errorf("then it knows %v\nit was %v", rules(after), rules(before))
		}
		w.act(l, pg, model.ActionDestroy)
		pass(2 * time.Minute)
		_ = w.store.View(func(tx *state.ReadTx) error {
			if n := records.Entries.Len(tx); n != 0 {
				t.Errorf("%d documents are left of it", n)
			}
			return nil
		})
		l.stop()
	})
}
