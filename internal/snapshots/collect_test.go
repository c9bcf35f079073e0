package snapshots_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/fake"
	"github.com/fusevm/fuse/internal/snapshots"
)

// What was taken for forks goes with them: no snapshot of a source or of a fork
// keeps it, and it keeps none.
func TestASeedOfForksKeepsNothingAndIsKeptByNothing(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		src := w.create("a")
		first := w.take(src.ID, false)
		<-time.After(time.Second)
		out, err := w.snaps.Fork(t.Context(), snapshots.ForkRequest{VMID: src.ID, Actor: "user:alice"})
		if err != nil {
			t.Fatal(err)
		}
		fork, seed := out.Environments[0], w.record(out.SnapshotID)
		later, ofFork := w.take(src.ID, false), w.take(fork.ID, false)
		if seed.ParentSnapshotID != "" || later.ParentSnapshotID != first.SnapshotID || ofFork.ParentSnapshotID != "" {
			t.Errorf("parents %q %q %q", seed.ParentSnapshotID, later.ParentSnapshotID, ofFork.ParentSnapshotID)
		}
		if err := w.snaps.Remove(t.Context(), later.SnapshotID, "user:alice"); err != nil {
			t.Error(err)
		}
		if err := w.snaps.Remove(t.Context(), first.SnapshotID, "user:alice"); err != nil {
			t.Error("the seed keeps an earlier one:", err)
		}
		w.destroy(fork.ID)
		w.collect()
		if w.record(seed.SnapshotID) != nil || w.record(ofFork.SnapshotID) == nil {
			t.Errorf("left: %v", w.records())
		}
		w.agree(1)
	})
}

// A restore whose answer was lost says that it may have been done.
func TestARestoreWithoutAnAnswer(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		vm := w.create("a")
		snap := w.take(vm.ID, false)
		w.write(vm, "/data/a", "two")
		w.host.LoseAnswer(fake.Restore)
		_, err := w.snaps.Restore(t.Context(), snap.SnapshotID, "user:alice", nil)
		want(t, err, fleet.CodeUnavailable, provider.ErrNoAnswer, "is not known")
		if s := w.record(snap.SnapshotID); s.State != fleet.SnapshotStateReady || !strings.Contains(s.LastError, "is not known") {
			t.Errorf("%s: %s", s.State, s.LastError)
		}
		if _, err := w.snaps.Restore(t.Context(), snap.SnapshotID, "user:alice", nil); err != nil || w.file(vm.UID, "/data/a") != "one" || w.record(snap.SnapshotID).LastError != "" {
			t.Errorf("again: %v, %q", err, w.file(vm.UID, "/data/a"))
		}
	})
}

// One that is due is collected though a later one of its life builds on it, and
// is told of once, as what it was.
func TestCollectionIsToldOnce(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, w *world) {
		vm := w.create("a")
		first := w.take(vm.ID, false)
		<-time.After(time.Second)
		second := w.take(vm.ID, false)
		layer, err := w.snaps.Take(t.Context(), snapshots.TakeRequest{VMID: vm.ID, Actor: "user:alice", Mode: fleet.SnapshotModeBuild, LayerKey: "k"})
		if err != nil {
			t.Fatal(err)
		}
		why := fleet.Reason{Actor: fleet.ActorReconcile, Rule: fleet.RuleRetention, Evidence: "its time is over"}
		for _, s := range []*fleet.Snapshot{first, layer} {
			want(t, w.snaps.Collect(t.Context(), s.SnapshotID, s.Revision-1, why), fleet.CodeConflict, nil, "written again")
			if err := w.snaps.Collect(t.Context(), s.SnapshotID, w.record(s.SnapshotID).Revision, why); err != nil {
				t.Error(err)
			}
			if err := w.snaps.Collect(t.Context(), s.SnapshotID, s.Revision, why); err != nil {
				t.Error("one that is gone:", err)
			}
		}
		for id, last := range map[string]string{first.SnapshotID: fleet.EventSnapshotGCDeleted, layer.SnapshotID: fleet.EventArtifactGCDeleted} {
			if got := w.events(id); !slices.Equal(got, []string{fleet.EventSnapshotCreating, fleet.EventSnapshotCreated, last}) {
				t.Errorf("%s: %v", id, got)
			}
		}
		if w.record(second.SnapshotID) == nil {
			t.Error("the later one is gone")
		}
		w.agree(1)
	})
}
