package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// artifactGrace is how long a use protects an artifact from any collection.
const artifactGrace = 10 * time.Minute

// ArtifactUse is how a layer artifact was last used. A cache hit is a use.
type ArtifactUse struct {
	Quiet    time.Duration // since the last use
	InFlight bool          // being copied or booted from
}

// artifactGC finds layer artifacts that nobody has used for the idle time, and
// then the least recently used of a tenant that has more than its share. What
// others build on, what an environment was made from, what is in flight and
// what was used within ten minutes is kept. Off unless asked for.
func (p *plan) artifactGC() {
	if !p.in.Fleet || p.in.Limits.ArtifactIdle <= 0 && p.in.Limits.ArtifactMax <= 0 || len(p.in.Stored.Snapshots) == 0 {
		return
	}
	if p.fault != "" {
		p.skip("artifact_gc")
		return
	}
	parents := parents(p.in.Stored.Snapshots)
	tenants := map[string][]artifact{}
	for _, s := range sortedSnapshots(p.in.Stored.Snapshots) {
		if s.Mode != fleet.SnapshotModeBuild || s.LayerKey == "" || s.State != fleet.SnapshotStateReady {
			continue
		}
		use, used := p.in.Stored.Uses[s.SnapshotID]
		if !used {
			use.Quiet = p.in.Clock.Uptime
		}
		quiet := min(use.Quiet, p.in.age(latest(s.CreatedAt, s.UpdatedAt)))
		tenants[s.TenantID] = append(tenants[s.TenantID], artifact{
			s, quiet, use.InFlight || quiet < artifactGrace || parents[s.SnapshotID] || p.in.Stored.Seeds[s.SnapshotID],
		})
	}
	for _, tenant := range slices.Sorted(maps.Keys(tenants)) {
		p.collectArtifacts(tenants[tenant])
	}
}

type artifact struct {
	row      *fleet.Snapshot
	quiet    time.Duration
	shielded bool
}

func (p *plan) collectArtifacts(all []artifact) {
	slices.SortStableFunc(all, func(a, b artifact) int { return cmp.Compare(b.quiet, a.quiet) }) // least recently used first
	left := len(all)
	for _, a := range all {
		idle := p.in.Limits.ArtifactIdle > 0 && a.quiet >= p.in.Limits.ArtifactIdle
		over := p.in.Limits.ArtifactMax > 0 && left > p.in.Limits.ArtifactMax
		switch {
		case a.shielded:
			continue
		case idle:
			p.collect(KindArtifactGC, a.row, fmt.Sprintf("not used for %s; kept are %s", a.quiet.Round(time.Second), p.in.Limits.ArtifactIdle))
		case over:
			p.collect(KindArtifactGC, a.row, fmt.Sprintf("the tenant has %d artifacts, %d are kept; this is the least recently used, %s ago", left, p.in.Limits.ArtifactMax, a.quiet.Round(time.Second)))
		default:
			continue
		}
		left--
	}
}
