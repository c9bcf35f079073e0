package lifecycle

import (
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// A task that was stuck and an environment that nobody used leave a dead letter
// with their end, and its capacity returns; a repeat updates the record, and
// other ends leave none.
func TestEndsThatLeaveADeadLetter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := setup(t, nil)
		letters := func() (all []fleet.DeadLetter) {
			f.view(func(tx *state.ReadTx) {
				for d := range tx.DeadLetters().All() {
					all = append(all, *d)
				}
			})
			return all
		}
		for i, rule := range []string{fleet.RuleStuckTask, fleet.RuleStuckTask, fleet.RuleIdleTimeout, fleet.RuleMissingFromProvider, fleet.RuleManualDestroy} {
			vm := f.create(t, "t")
			why := fleet.Reason{Actor: fleet.ActorReconcile, Rule: rule, Evidence: "it was so"}
			if err := f.svc.DestroyLife(t.Context(), vm.ID, vm.UID, why); err != nil {
				t.Fatal(err)
			}
			f.wantNothingLeft(t)
			f.wantTask(t, "t", fleet.TaskRunFailed)
			if n, want := len(letters()), min(2, (i+2)/2); i < 3 && n != want {
				t.Errorf("after %d ends: %d letters, want %d", i+1, n, want)
			}
		}
		got := map[fleet.DeadLetterKind]fleet.DeadLetter{}
		for _, d := range letters() {
			got[d.Kind] = d
		}
		stuck, idle := got[fleet.DeadLetterStuckTask], got[fleet.DeadLetterIdleTimeout]
		if len(got) != 2 || stuck.EntityID != "fuse-t" || stuck.TaskID != "t" || stuck.RetryCount != 2 || stuck.Reason != "it was so" || idle.RetryCount != 1 {
			t.Errorf("letters %+v", got)
		}
	})
}
