package converge

import (
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
