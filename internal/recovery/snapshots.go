package recovery

import "github.com/fusevm/fuse/internal/fleet"

// SnapshotVerdict is what becomes of a snapshot; an empty State leaves it as it
// is. Exports says that those which wait count as failed.
type SnapshotVerdict struct {
	State   fleet.SnapshotState
	Exports bool
	Rule    string
	Why     string
}

type snapshotRule struct {
	name    string
	applies func(fleet.Snapshot) bool
	state   fleet.SnapshotState
	why     string
}

// snapshotRules are asked in order; the first that applies decides. Whatever
// was under way has nobody left who would finish it.
var snapshotRules = []snapshotRule{
	{
		"creating", func(s fleet.Snapshot) bool { return s.State == fleet.SnapshotStateCreating }, fleet.SnapshotStateError,
		"the control plane ended while it was being taken, so what was written may be cut short",
	},
	{
		"deleting", func(s fleet.Snapshot) bool { return s.State == fleet.SnapshotStateDeleting }, fleet.SnapshotStateError,
		"the control plane ended while it was being deleted; delete it again",
	},
	{
		"restoring", func(s fleet.Snapshot) bool { return s.State == fleet.SnapshotStateRestoring }, fleet.SnapshotStateReady,
		"a restore only reads it; what was to come of it is undone with its environment",
	},
	{
		"settled", func(fleet.Snapshot) bool { return true }, "", "",
	},
}

// TriageSnapshot decides what becomes of one snapshot.
func TriageSnapshot(s fleet.Snapshot) SnapshotVerdict {
	v := SnapshotVerdict{}
	for _, e := range s.Exports {
		v.Exports = v.Exports || e.Status == fleet.SnapshotExportPending
	}
	for _, r := range snapshotRules {
		if r.applies(s) {
			v.State, v.Rule, v.Why = r.state, r.name, r.why
			return v
		}
	}
	return v
}
