package reconcile

import (
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// IdempotencyRetention is how long the answer to a request with an
// idempotency key is kept.
const IdempotencyRetention = 24 * time.Hour

// Kept is the age of the oldest record of each kind that is purged; zero
// means that there is none.
type Kept struct {
	OldestLife        time.Time
	OldestIdempotency time.Time
	OldestEvent       time.Time
	// EventRetention is how long events are kept; zero means for ever.
	EventRetention time.Duration
}

// purge forgets records that have outlived their use. It goes by age, so it
// waits when the clock cannot be trusted.
func (p *plan) purge() {
	if !p.in.Fleet {
		return
	}
	if fault := p.in.Clock.fault(p.in.Now); fault != "" {
		p.sum.Skipped = append(p.sum.Skipped, "purge: "+fault)
		return
	}
	for _, c := range []struct {
		kind   Kind
		oldest time.Time
		keep   time.Duration
	}{
		{KindPurgeLives, p.in.Kept.OldestLife, fleet.LifeRetention},
		{KindPurgeIdempotency, p.in.Kept.OldestIdempotency, IdempotencyRetention},
		{KindPurgeEvents, p.in.Kept.OldestEvent, p.in.Kept.EventRetention},
	} {
		before := p.in.Now.Add(-c.keep).UTC().Round(0)
		if c.keep > 0 && !c.oldest.IsZero() && c.oldest.Before(before) {
			p.steps = append(p.steps, Step{
				Kind: c.kind, Rule: "retention", Before: before,
				Evidence: fmt.Sprintf("the oldest is of %s, kept are %s", c.oldest.UTC().Format(time.RFC3339), c.keep),
			})
		}
	}
}
