package decide

import (
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// Job is what is known of a playground's creation job.
type Job uint8

// Jobs. The zero Job is not knowing, which is the careful answer.
const (
	JobUnknown Job = iota
	JobAlive       // queued or at work
	JobNone        // there is none, or its worker is known to be dead
)

// Input is all that a decision depends on.
type Input struct {
	Now         time.Time
	Policy      model.Policy
	Marquee     model.Marquee
	Playgrounds []model.Playground // all rows of this marquee
	Look        observe.Look
	Jobs        map[model.PlaygroundID]Job
	Epoch       uint64 // of the lease that this pass holds
	Seed        uint64 // of the order, so that a budget does not starve the same tail

	// Revisions of the store: before the look was sent, after its answer came,
	// and when the rows were read. Rows are read after the answer.
	Sent, Heard, Rows uint64
}
