package webhooks

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// How long and how often something is tried.
const (
	// giveUpAfter is how long after it was first to be sent a message is given
	// up, and disableAfter how long without any success a webhook is disabled.
	giveUpAfter  = 24 * time.Hour
	disableAfter = 72 * time.Hour
	firstPause   = 5 * time.Second
	longestPause = time.Hour
	// downAfter tries in a row that fail mean that the receiver is down: from
	// then on one message at a time is tried, at least every longestProbe.
	downAfter    = 4
	longestProbe = 5 * time.Minute
	// holdTries is how often a message is tried before those of its environment
	// stop waiting behind it.
	holdTries = 5
)

// Bounds.
const (
	// perHook is how many messages of one webhook are under way at a time.
	perHook = 4
	// maxPending bounds the messages that are set aside to be tried again; with
	// more the webhook stays where it is in the log.
	maxPending = 1000
	// batchSize bounds the messages of one commit.
	batchSize = 64
	// keptDone bounds the finished deliveries that are kept of a webhook.
	keptDone = 100
)

// pause is how long to wait after the n-th failed try: three times as long
// each time, give or take a fifth, so that many do not come back at once.
func pause(n int, longest time.Duration) time.Duration {
	d := firstPause
	for range min(n-1, 10) {
		d = min(3*d, longest)
	}
	return d - d/5 + rand.N(2*d/5+1) //nolint:gosec // spreads load, guards nothing
}

// outcome is what became of one try.
type outcome struct {
	status int // 0: no answer
	took   time.Duration
	answer string
	err    string // empty: delivered
	gone   bool   // the receiver says that it will never want any
	// refused is an answer that only this message is to blame for, as far as
	// one can tell: the receiver itself is up.
	refused bool
	cut     bool // the try was broken off by this side and says nothing
}

// settle writes an outcome into a delivery.
func settle(d *fleet.Delivery, o outcome, now time.Time) {
	if o.cut {
		d.NextAt = now
		return
	}
	d.Attempts++
	d.Status, d.Took, d.Answer, d.Error = o.status, o.took, o.answer, o.err
	switch {
	case o.err == "":
		d.State, d.NextAt, d.EndedAt = fleet.DeliveryDelivered, time.Time{}, now
	default:
		d.NextAt = now.Add(pause(d.Attempts, longestPause))
	}
}

// expire gives up a delivery whose time is over.
func expire(d *fleet.Delivery, now time.Time) bool {
	if d.State != fleet.DeliveryPending || now.Before(d.CreatedAt.Add(giveUpAfter)) {
		return false
	}
	d.State, d.NextAt, d.EndedAt = fleet.DeliveryFailed, time.Time{}, now
	if d.Error == "" {
		d.Error = fmt.Sprintf("the receiver was down for %s", giveUpAfter)
	}
	return true
}

// queue is what a webhook has set aside, in the order of the log.
type queue []*fleet.Delivery

// due picks what may be tried now, at most room: of each environment the
// first, and what stands behind one that has been tried often enough. The
// second result is when there is more to do.
func (q queue) due(now time.Time, room int) (out []*fleet.Delivery, next time.Time) {
	held := map[string]bool{}
	for _, d := range q {
		if d.VMID != "" && held[d.VMID] {
			continue
		}
		if d.VMID != "" && d.Attempts < holdTries {
			held[d.VMID] = true
		}
		switch {
		case !d.NextAt.After(now):
			if len(out) < room {
				out = append(out, d)
			} else {
				next = now
			}
		case next.IsZero() || d.NextAt.Before(next):
			next = d.NextAt
		}
	}
	return out, next
}

// probe picks the message by which to see whether a receiver is back: of those
// that may go next the one that has been tried least, so that a message which
// the receiver will never take is not all it is judged by.
func (q queue) probe() *fleet.Delivery {
	seen := map[string]bool{}
	var best *fleet.Delivery
	for _, d := range q {
		if d.VMID != "" && seen[d.VMID] {
			continue
		}
		seen[d.VMID] = d.Attempts < holdTries
		if best == nil || d.Attempts < best.Attempts {
			best = d
		}
	}
	return best
}

// holds reports whether a message of that environment has to wait.
func (q queue) holds(vm string) bool {
	for _, d := range q {
		if vm != "" && d.VMID == vm && d.Attempts < holdTries {
			return true
		}
	}
	return false
}
