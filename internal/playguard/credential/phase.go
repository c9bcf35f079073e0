package credential

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
)

// Bounds of writing logins on a marquee.
const (
	mostWrites = 10
	writeAgain = 2 * time.Minute // after a failure; twice as long after each
	writeLast  = 30 * time.Minute
)

// Phase is the part of a pass in which marquees get the logins of registries that
// they should have: those that were set, replaced or removed since. One whose
// logins cannot be read keeps nobody else from getting his.
func Phase(store records.Store, w *work.Worker) loop.Phase {
	return loop.Phase{Name: "registry auth", Run: func(_ context.Context, t *loop.Turn) error {
		var owed []loop.Owed
		var failed []error
		if err := store.View(func(tx *state.ReadTx) error {
			for _, p := range t.Free() {
				dir, _ := t.In.Look.Project(p.Project).Directory()
				if len(p.Registries) == 0 && p.Auth == "" || !dir.Exists || p.State == model.StateDestroying || p.State == model.StatePending {
					continue
				}
				switch what, err := w.Owes(tx, p); {
				case err != nil:
					failed = append(failed, fmt.Errorf("logins of playground %s: %w", p.ID, err))
				case what != p.Auth:
					owed = append(owed, loop.Owed{Row: p, What: what})
				}
			}
			return nil
		}); err != nil {
			return err
		}
		t.Few(loop.Chore{Name: "auth", Most: mostWrites, First: writeAgain, Last: writeLast, Do: func(ctx context.Context, was records.Playground) (bool, error) {
			end, err := w.Task(t.Site, was.ID, work.RuleAuth, was.Unmoved).WriteAuth(ctx)
			return !end.Lost && end.Status == 0, err
		}}, owed)
		return errors.Join(failed...)
	}}
}
