package converge

import (
	"context"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/state/settings"
)

// SetWall gives a loop another wall clock, before Run.
func (l *Loop) SetWall(wall func() time.Time) { l.clock.wall = wall }

// PutPauses sets the pauses.
func PutPauses(tx *state.Tx, p fleet.Pauses) error {
	return settings.Documents.Put(tx, settingPauses, &fleet.Setting{Pauses: &p})
}

// Begin readies a loop for Cycle; the result ends it.
func (l *Loop) Begin() (end func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	l.stop, l.acts.ctx = cancel, ctx
	return func() {
		cancel(nil)
		l.goes.Wait()
	}
}

// Cycle runs one cycle.
func (l *Loop) Cycle() { l.cycle(l.acts.ctx, l.cfg.HostDeadline) }
