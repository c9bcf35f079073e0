package credential

import (
	"context"

	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
)

// mostWrites is how many playgrounds of a marquee get other logins in one pass.
const mostWrites = 10

// Phase is the part of a pass in which marquees get the logins of registries that
// they should have: those that were set, replaced or removed since.
func Phase(store records.Store, w *work.Worker) loop.Phase {
	return loop.Phase{Name: "registry auth", Run: func(_ context.Context, t *loop.Turn) error {
		var owed []*records.Playground
		if err := store.View(func(tx *state.ReadTx) error {
			for _, p := range t.Free() {
				dir, _ := t.In.Look.Project(p.Project).Directory()
				if len(p.Registries) == 0 && p.Auth == "" || !dir.Exists || p.State == model.StateDestroying || p.State == model.StatePending {
					continue
				}
				owes, err := w.Owes(tx, p)
				if err != nil {
					return err
				}
				if owes && len(owed) < mostWrites {
					owed = append(owed, p)
				}
			}
			return nil
		}); err != nil {
			return err
		}
		for _, p := range owed {
			was := *p
			t.Start(p.ID, func(ctx context.Context) (bool, error) {
				_, err := w.Task(t.Site, was.ID, work.RuleAuth, func(now *records.Playground) error {
					if now.State != was.State {
						return records.ErrMoved
					}
					return nil
				}).WriteAuth(ctx)
				return false, err
			})
		}
		return nil
	}}
}
