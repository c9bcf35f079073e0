package snapshots

import (
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/snapshots/decide"
	"github.com/fusevm/fuse/internal/state"
)

// Seed finds the snapshot that a spec begins with, in the transaction that
// places the environment: from then on its row keeps the snapshot from being
// deleted.
func Seed(tx *state.ReadTx, spec fleet.Spec, sees func(owner string) bool) (*fleet.Snapshot, error) {
	snap, ok := tx.Snapshots().Get(spec.SeedSnapshotID)
	if !ok || !sees(snap.Owner) {
		return nil, notFound(spec.SeedSnapshotID)
	}
	if err := decide.Seedable(snap, spec.ResumeSeed); err != nil {
		return nil, err
	}
	return snap, able(tx, snap.HostID, fleet.CapFork, "make environments from snapshots")
}
