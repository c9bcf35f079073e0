package events

import (
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// PlaygroundEnd is the payload of events about the end of a playground.
type PlaygroundEnd struct {
	At    time.Time `json:"expires_at,omitzero"`
	Lead  int64     `json:"lead_seconds,omitempty"` // that a warning is for
	Rule  string    `json:"rule,omitempty"`
	Epoch uint64    `json:"epoch,omitempty"`
}

// TrickEnd is the payload of trick.attempt_ended and trick.finished.
type TrickEnd struct {
	Attempt  int    `json:"attempt"`
	Code     int    `json:"code"`
	End      string `json:"end,omitempty"`
	Schedule string `json:"schedule,omitempty"`
}

// TrickRun is the payload of what a schedule did.
type TrickRun struct {
	Slot   time.Time `json:"slot,omitzero"`
	Trick  string    `json:"trick,omitempty"`
	Missed int       `json:"missed,omitempty"`
}

func expiring(e *fleet.Event) told {
	p, ok := read[PlaygroundEnd](e)
	if !ok || p.At.IsZero() {
		return plain("It ends soon")(e)
	}
	return plain("It ends at " + p.At.UTC().Format(time.RFC3339) + " unless it is given more time")(e)
}

func trickEnded(text string) func(e *fleet.Event) told {
	return func(e *fleet.Event) told {
		if p, ok := read[TrickEnd](e); ok {
			return withError(fmt.Sprintf("%s with code %d", text, p.Code))(e)
		}
		return withError(text)(e)
	}
}
