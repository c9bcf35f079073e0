package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Stored is what collecting snapshots and artifacts goes by.
type Stored struct {
	Snapshots []*fleet.Snapshot
	// Seeds are the snapshots that tracked environments were made from.
	Seeds map[string]bool
	// Uses are of layer artifacts, by snapshot id; one that is not in it was
	// not used since the loop began.
	Uses map[string]ArtifactUse
	// Held are snapshots that work under way needs.
	Held map[string]bool
}

// snapshotGC finds snapshots past their retention. The newest of its
// environment is kept, and so are what snapshots of other lives build on, what an
// environment was made from, and what builds made. Later ones of the same life
// build on nothing of it that goes with it, and do not keep it. What is unwanted goes at once. One that
// failed is tried again after 1, 2, 4 … cycles.
func (p *plan) snapshotGC() {
	if !p.in.Fleet || len(p.in.Stored.Snapshots) == 0 {
		return
	}
	if p.fault != "" {
		p.skip("snapshot_gc")
		return
	}
	parents, newest := parents(p.in.Stored.Snapshots), newest(p.in.Stored.Snapshots)
	elsewhere := parentsElsewhere(p.in.Stored.Snapshots)
	for _, s := range sortedSnapshots(p.in.Stored.Snapshots) {
		if p.in.Stored.Held[s.SnapshotID] {
			continue
		}
		if why := unwanted(s, p.in.Stored.Seeds[s.SnapshotID] || parents[s.SnapshotID]); why != "" {
			p.collect(KindSnapshotGC, s, why)
			continue
		}
		until, ok := p.in.Limits.retained(s)
		if !ok {
			continue
		}
		// A leap of the clock does not make one that was there older.
		early := p.in.Now.Before(until) || p.in.age(s.CreatedAt) < until.Sub(s.CreatedAt)
		if early || s.Mode == fleet.SnapshotModeBuild || elsewhere[s.SnapshotID] || p.in.Stored.Seeds[s.SnapshotID] || newest[s.SnapshotID] {
			continue
		}
		switch s.State {
		case fleet.SnapshotStateReady, fleet.SnapshotStateError, fleet.SnapshotStateDeleting:
			p.collect(KindSnapshotGC, s, fmt.Sprintf("kept until %s; not the newest of %s, nothing of another life builds on it", until.UTC().Format(time.RFC3339), s.VMID))
		}
	}
}

// unwanted is why a snapshot goes whatever its retention; "" if it does not. Nobody
// waits for one whose end has begun, for what was not written to its end, and for
// what was taken only for forks of which none is left.
func unwanted(s *fleet.Snapshot, used bool) string {
	switch {
	case s.Discard && (s.State == fleet.SnapshotStateError || s.State == fleet.SnapshotStateDeleting):
		return "its end has begun and its host has not confirmed it"
	case s.Ephemeral && (s.State == fleet.SnapshotStateReady || s.State == fleet.SnapshotStateError) &&
		!used:
		return "it was taken for forks, and none is left"
	}
	return ""
}

// retained is until when a snapshot is kept; ok is false for one without end.
func (l Limits) retained(s *fleet.Snapshot) (until time.Time, ok bool) {
	switch {
	case s.RetentionUntil != nil:
		return *s.RetentionUntil, true
	case l.SnapshotRetention > 0 && !s.CreatedAt.IsZero():
		return s.CreatedAt.Add(l.SnapshotRetention), true
	}
	return time.Time{}, false
}

// collect plans the end of a snapshot, with the pauses of a retried destroy
// between its tries.
func (p *plan) collect(kind Kind, s *fleet.Snapshot, why string) {
	p.collecting[s.SnapshotID] = true
	tries := p.in.Memory.Collects[s.SnapshotID]
	if p.in.Busy[s.SnapshotID] {
		p.next.Collects[s.SnapshotID] = tries
		return
	}
	if tries.Wait > 0 {
		tries.Wait--
		p.next.Collects[s.SnapshotID] = tries
		return
	}
	step := Step{
		Kind: kind, VMID: s.VMID, Snapshot: s.SnapshotID, RowRevision: s.Revision, Rule: fleet.RuleRetention,
		Count: tries.Made + 1, Evidence: why,
	}
	if p.end(view{host: s.HostID}, step) == admitted {
		tries = backedOff(tries, p.in.Limits.BackoffCycles)
	}
	p.next.Collects[s.SnapshotID] = tries
}

// parents are the snapshots that others, not on their own way out, build on.
func parents(all []*fleet.Snapshot) map[string]bool {
	out := map[string]bool{}
	for _, s := range all {
		if s.ParentSnapshotID != "" && s.State != fleet.SnapshotStateDeleting {
			out[s.ParentSnapshotID] = true
		}
	}
	return out
}

// parentsElsewhere are those of parents on which another life's builds.
func parentsElsewhere(all []*fleet.Snapshot) map[string]bool {
	lives, out := map[string]string{}, map[string]bool{}
	for _, s := range all {
		lives[s.SnapshotID] = lifeOf(s)
	}
	for _, s := range all {
		if s.ParentSnapshotID != "" && s.State != fleet.SnapshotStateDeleting && lives[s.ParentSnapshotID] != lifeOf(s) {
			out[s.ParentSnapshotID] = true
		}
	}
	return out
}

func lifeOf(s *fleet.Snapshot) string { return cmp.Or(s.UID, s.VMID) }

// newest are the latest snapshots of each life, ties by id. One that was taken for
// forks goes with them, and does not stand in for one that is to be kept.
func newest(all []*fleet.Snapshot) map[string]bool {
	latest := map[string]*fleet.Snapshot{}
	for _, s := range all {
		if s.State == fleet.SnapshotStateDeleting || s.State == fleet.SnapshotStateError || s.Ephemeral {
			continue // an unusable one does not stand in for a good one
		}
		life := lifeOf(s)
		if was := latest[life]; was == nil || cmp.Or(s.CreatedAt.Compare(was.CreatedAt), cmp.Compare(s.SnapshotID, was.SnapshotID)) > 0 {
			latest[life] = s
		}
	}
	out := map[string]bool{}
	for _, s := range latest {
		out[s.SnapshotID] = true
	}
	return out
}

func sortedSnapshots(all []*fleet.Snapshot) []*fleet.Snapshot {
	return slices.SortedFunc(slices.Values(all), func(a, b *fleet.Snapshot) int { return cmp.Compare(a.SnapshotID, b.SnapshotID) })
}
