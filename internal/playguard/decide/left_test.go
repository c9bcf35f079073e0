package decide_test

import (
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
)

// A destroy that left files of another user says so on the record, whoever began
// it; one whose end nobody knows says nothing.
func TestADestroyThatLeavesFiles(t *testing.T) {
	at := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name   string
		state  model.State
		kind   model.OpKind
		settle decide.Settle
		left   bool
		want   model.State
	}{
		{"destroy", model.StateDestroying, model.OpDestroy, decide.Settle{Exit: decide.ExitLeft}, true, model.StateDestroying},
		{"destroy of which nobody knows", model.StateDestroying, model.OpDestroy, decide.Settle{Exit: decide.ExitLeft, Lost: true}, false, model.StateDestroying},
		{"destroy that failed otherwise", model.StateDestroying, model.OpDestroy, decide.Settle{Exit: 73}, false, model.StateDestroying},
		{"destroy that is through", model.StateDestroying, model.OpDestroy, decide.Settle{}, false, model.StateDestroying},
		{"reclaim", model.StateRunning, model.OpReclaim, decide.Settle{Exit: decide.ExitLeft}, true, model.StateDestroying},
		{"reclaim that is through", model.StateRunning, model.OpReclaim, decide.Settle{}, false, model.StateDestroying},
		{"stop", model.StateStopping, model.OpStop, decide.Settle{Exit: decide.ExitLeft}, false, model.StateStopping},
	} {
		p := model.Playground{ID: "a", State: c.state, Intent: model.IntentGone, Op: model.Op{ID: "o", Kind: c.kind}}
		c.settle.Op = "o"
		q, ok := decide.Apply(p, decide.Step{Playground: "a", Act: c.settle}, model.DefaultPolicy(), decide.Stamp{At: at})
		if !ok || q.State != c.want || (q.Attention == model.AttentionLeft) != c.left || q.Queued.At.Equal(at) != c.left || !q.Op.IsZero() {
			t.Errorf("%s: %+v", c.name, q)
		}
	}
}
