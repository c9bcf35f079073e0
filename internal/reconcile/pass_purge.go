package reconcile

import (
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Kept is the age of the oldest record of each kind that is purged, zero for
// none, and how long a kind is kept, zero for ever. Ended lives are kept for
// fleet.LifeRetention.
type Kept struct {
	OldestLife        time.Time
	OldestIdempotency time.Time
	OldestEvent       time.Time
	OldestDeadLetter  time.Time // when it was last seen
	KeepIdempotency   time.Duration
	KeepEvents        time.Duration
	KeepDeadLetters   time.Duration
}

// purge forgets records that have outlived their use. It goes by age, so it
// waits when the clock cannot be trusted.
func (p *plan) purge() {
	if !p.in.Fleet {
		return
	}
	if p.fault != "" {
		p.skip("purge")
		return
	}
	for _, c := range []struct {
		kind   Kind
		oldest time.Time
		keep   time.Duration
	}{
		{KindPurgeLives, p.in.Kept.OldestLife, fleet.LifeRetention},
		{KindPurgeIdempotency, p.in.Kept.OldestIdempotency, p.in.Kept.KeepIdempotency},
		{KindPurgeEvents, p.in.Kept.OldestEvent, p.in.Kept.KeepEvents},
		{KindPurgeDeadLetters, p.in.Kept.OldestDeadLetter, p.in.Kept.KeepDeadLetters},
	} {
		before := p.in.before(c.keep).UTC().Round(0)
		if c.keep > 0 && !c.oldest.IsZero() && c.oldest.Before(before) {
			p.steps = append(p.steps, Step{
				Kind: c.kind, Rule: "retention", Before: before,
				Evidence: fmt.Sprintf("the oldest is of %s, kept are %s", c.oldest.UTC().Format(time.RFC3339), c.keep),
			})
		}
	}
}
