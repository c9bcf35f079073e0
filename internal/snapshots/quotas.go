package snapshots

import (
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/quota"
	"github.com/fusevm/fuse/internal/snapshots/decide"
	"github.com/fusevm/fuse/internal/state"
)

// Dimensions of quotas.
const (
	QuotaSnapshots  = "snapshots"
	QuotaSnapshotMB = "snapshot_mb"
)

// Dimensions are what owners and keys can be bounded by, for quota.Config.
func Dimensions() []quota.Dimension {
	return []quota.Dimension{
		{Name: QuotaSnapshots, Unit: "snapshots", Count: func(tx *state.ReadTx, s quota.Scope) (total int64) {
			for snap := range owned(tx, s) {
				n, _ := decide.Counts(snap)
				total += n
			}
			return total
		}},
		{Name: QuotaSnapshotMB, Unit: "MB of snapshots", Count: func(tx *state.ReadTx, s quota.Scope) (total int64) {
			for snap := range owned(tx, s) {
				_, bytes := decide.Counts(snap)
				total += megabytes(bytes)
			}
			return total
		}},
	}
}

func owned(tx *state.ReadTx, s quota.Scope) func(yield func(*fleet.Snapshot) bool) {
	return func(yield func(*fleet.Snapshot) bool) {
		for snap := range tx.Snapshots().All() {
			mine := s.Kind == quota.KindOwner && snap.Owner == s.Name || s.Kind == quota.KindKey && snap.KeyID == s.Name
			if mine && !yield(snap) {
				return
			}
		}
	}
}

func megabytes(n int64) int64 { return (n + 1<<20 - 1) >> 20 }
