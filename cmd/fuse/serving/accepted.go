package serving

import (
	"context"
	"log/slog"

	"github.com/fusevm/fuse/internal/fleet"
)

// Pauser stops the destruction of environments; *converge.Loop is one.
type Pauser interface {
	Pauses() (fleet.Pauses, error)
	Pause(ctx context.Context, hostID, actor, reason string) (fleet.Pauses, error)
}

// PauseAccepted stops destruction before the first look of a start that confirms
// another store: what was made since that store was left is in no record of it,
// and would be an orphan. An operator looks and resumes.
func PauseAccepted(ctx context.Context, loop Pauser, log *slog.Logger) error {
	now, err := loop.Pauses()
	if err != nil || now.All != nil {
		return err
	}
	_, err = loop.Pause(ctx, "", fleet.ActorOperator, "started with --accept-store: look at 'fuse reconcile plan', then 'fuse reconcile resume'")
	if err == nil {
		log.Warn("destruction is paused on every host until 'fuse reconcile resume': this store was confirmed with --accept-store")
	}
	return err
}
