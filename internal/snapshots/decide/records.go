// Package decide holds what is decided about snapshot records: pure functions
// of rows, asked in the transaction that acts on the answer.
package decide

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
)

// Limits bound what one tenant keeps; zero is no limit.
type Limits struct {
	Count int
	Bytes int64
}

// Usage is what a tenant keeps. What is being taken counts from its beginning,
// what builds made does not (seed: SnapshotQuotaUsage).
type Usage struct {
	Count int
	Bytes int64
}

// counts says whether a snapshot counts against a quota.
func counts(s *fleet.Snapshot) bool {
	switch s.State {
	case fleet.SnapshotStateCreating, fleet.SnapshotStateReady, fleet.SnapshotStateRestoring:
		return s.Mode != fleet.SnapshotModeBuild
	}
	return false
}

// UsageOf adds up what a tenant keeps, one snapshot excepted.
func UsageOf(all iter.Seq[*fleet.Snapshot], tenant, except string) (u Usage) {
	for s := range all {
		if s.TenantID == tenant && s.SnapshotID != except && counts(s) {
			u.Count++
			u.Bytes += s.SizeBytes
		}
	}
	return u
}

// Counts says how much one snapshot takes of a quota.
func Counts(s *fleet.Snapshot) (n, bytes int64) {
	if !counts(s) {
		return 0, 0
	}
	return 1, s.SizeBytes
}

// Admit refuses another snapshot of a tenant that has its share. What it will
// take is not known yet, so Keep is asked again when it is.
func (l Limits) Admit(tenant string, u Usage) error {
	if l.Count > 0 && u.Count >= l.Count {
		return l.exceeded(tenant, fmt.Sprintf("%d snapshots", l.Count), fmt.Sprintf("%d snapshots", u.Count))
	}
	if l.Bytes > 0 && u.Bytes >= l.Bytes {
		return l.exceeded(tenant, fmt.Sprintf("%d bytes", l.Bytes), fmt.Sprintf("%d bytes", u.Bytes))
	}
	return nil
}

// Keep refuses a snapshot that was written and turned out too large beside what
// the tenant keeps.
func (l Limits) Keep(tenant string, others Usage, size int64) error {
	if l.Bytes > 0 && others.Bytes+size > l.Bytes {
		return l.exceeded(tenant, fmt.Sprintf("%d bytes", l.Bytes), fmt.Sprintf("%d bytes and the new one's %d", others.Bytes, size))
	}
	return nil
}

func (l Limits) exceeded(tenant, limit, usage string) error {
	return fleet.Errorf(fleet.CodeConflict, "%w: %q keeps %s of %s", fleet.ErrSnapshotQuotaExceeded, tenant, usage, limit).
		With(fleet.DetailScope, "tenant "+tenant).With(fleet.DetailLimit, limit).With(fleet.DetailUsage, usage).
		With(fleet.DetailRemedy, "delete a snapshot (fuse snapshot rm), or have the operator raise --snapshot-quota-count or --snapshot-quota-mb")
}

// Parent is the snapshot that the next one of a life builds on: the newest of
// that life which is usable, or the one it was made from. What was taken for
// forks goes with them, so nothing builds on it.
func Parent(ofVM iter.Seq[*fleet.Snapshot], vm *fleet.VM, seed *fleet.Snapshot) string {
	var newest *fleet.Snapshot
	for s := range ofVM {
		if s.UID != vm.UID || s.Discard || s.Ephemeral || s.State != fleet.SnapshotStateReady && s.State != fleet.SnapshotStateRestoring {
			continue
		}
		if newest == nil || Newer(s, newest) {
			newest = s
		}
	}
	switch {
	case newest != nil:
		return newest.SnapshotID
	case seed != nil && seed.Ephemeral:
		return ""
	}
	return vm.Spec.SeedSnapshotID
}

// Newer orders snapshots: by creation, ties by id (semantics 39).
func Newer(a, b *fleet.Snapshot) bool {
	return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.SnapshotID, b.SnapshotID)) > 0
}

// maxNamed is how many users or children an error names.
const maxNamed = 5

// Removable refuses the end of a snapshot that others need. Only those that the
// caller sees are named.
func Removable(s *fleet.Snapshot, all iter.Seq[*fleet.Snapshot], vms iter.Seq[*fleet.VM], sees func(owner string) bool) error {
	return removable(s, all, vms, sees, func(c *fleet.Snapshot) bool { return c.ParentSnapshotID == s.SnapshotID })
}

// Collectable is Removable for one that has outlived its retention: later ones
// of the same life hold all that they need, and do not keep it.
func Collectable(s *fleet.Snapshot, all iter.Seq[*fleet.Snapshot], vms iter.Seq[*fleet.VM], sees func(owner string) bool) error {
	return removable(s, all, vms, sees, func(c *fleet.Snapshot) bool { return c.ParentSnapshotID == s.SnapshotID && c.UID != s.UID })
}

func removable(s *fleet.Snapshot, all iter.Seq[*fleet.Snapshot], vms iter.Seq[*fleet.VM], sees func(owner string) bool, child func(*fleet.Snapshot) bool) error {
	switch s.State {
	case fleet.SnapshotStateCreating, fleet.SnapshotStateRestoring:
		return WrongState(s, "delete", "wait until that has ended")
	}
	var users, children []string
	for vm := range vms {
		if vm.Spec.SeedSnapshotID == s.SnapshotID {
			users = append(users, named(vm.ID, sees(vm.Owner)))
		}
	}
	for c := range all {
		if child(c) && c.State != fleet.SnapshotStateDeleting && !c.Discard {
			children = append(children, named(c.SnapshotID, sees(c.Owner)))
		}
	}
	switch {
	case len(users) > 0:
		return fleet.Errorf(fleet.CodeConflict, "snapshot %s: %w by %s", s.SnapshotID, fleet.ErrSnapshotInUse, list(users)).
			With(fleet.DetailScope, s.SnapshotID).With(fleet.DetailUsage, list(users)).
			With(fleet.DetailRemedy, "destroy what was made from it first")
	case len(children) > 0:
		return fleet.Errorf(fleet.CodeConflict, "snapshot %s: %w: %s", s.SnapshotID, fleet.ErrSnapshotHasChildren, list(children)).
			With(fleet.DetailScope, s.SnapshotID).With(fleet.DetailUsage, list(children)).
			With(fleet.DetailRemedy, "delete those first")
	}
	return nil
}

func named(id string, seen bool) string {
	if seen {
		return id
	}
	return ""
}

// list names what may be named, the first few of it.
func list(ids []string) string {
	hidden := len(ids)
	ids = slices.DeleteFunc(ids, func(id string) bool { return id == "" })
	hidden -= len(ids)
	slices.Sort(ids)
	if len(ids) > maxNamed {
		hidden += len(ids) - maxNamed
		ids = ids[:maxNamed]
	}
	out := strings.Join(ids, ", ")
	switch {
	case hidden == 0:
		return out
	case out == "":
		return fmt.Sprintf("%d others", hidden)
	}
	return fmt.Sprintf("%s and %d others", out, hidden)
}

// WrongState refuses a verb on a snapshot that stands elsewhere in its life.
func WrongState(s *fleet.Snapshot, verb, remedy string) error {
	err := fleet.Errorf(fleet.CodeConflict, "cannot %s snapshot %s: %w: it is %s", verb, s.SnapshotID, fleet.ErrSnapshotInvalidState, s.State).
		With(fleet.DetailScope, s.SnapshotID).With(fleet.DetailUsage, "state "+string(s.State)).With(fleet.DetailRemedy, remedy)
	if s.LastError != "" {
		err = err.With(fleet.DetailReason, s.LastError)
	}
	return err
}

// Seedable refuses a snapshot that no environment can begin with as it is asked
// for.
func Seedable(s *fleet.Snapshot, live bool) error {
	switch {
	case s.State != fleet.SnapshotStateReady && s.State != fleet.SnapshotStateRestoring || s.Discard:
		return WrongState(s, "begin with", "choose one that is ready")
	case s.HostID == "":
		return fleet.Errorf(fleet.CodeConflict, "snapshot %s is on no host that is known: %w", s.SnapshotID, fleet.ErrSnapshotInvalidState).
			With(fleet.DetailScope, s.SnapshotID)
	case !live && s.Kind == fleet.SnapshotKindLive:
		return fleet.Errorf(fleet.CodeConflict, "snapshot %s is live: %w: its disk means nothing without its memory", s.SnapshotID, fleet.ErrSnapshotNotSeedable).
			With(fleet.DetailScope, s.SnapshotID).With(fleet.DetailRemedy, "fork from it with live, or take a disk snapshot")
	case live && s.Kind != fleet.SnapshotKindLive:
		return fleet.Errorf(fleet.CodeConflict, "snapshot %s has no memory: %w", s.SnapshotID, fleet.ErrSnapshotNotSeedable).
			With(fleet.DetailScope, s.SnapshotID).With(fleet.DetailRemedy, "fork from it without live, or take a live snapshot")
	}
	return nil
}
