package events

import (
	"fmt"

	"github.com/fusevm/fuse/internal/fleet"
)

// PlaygroundChange is the payload of playground.state_changed and
// playground.requested.
type PlaygroundChange struct {
	From   string `json:"from,omitempty"`
	To     string `json:"to,omitempty"`
	Action string `json:"action,omitempty"`
	Rule   string `json:"rule,omitempty"`
	Epoch  uint64 `json:"epoch,omitempty"`
}

// PlaygroundOperation is the payload of playground.operation_started,
// playground.operation_ended and playground.operation_timed_out.
type PlaygroundOperation struct {
	ID      string   `json:"id"`
	Kind    string   `json:"kind"`
	Marquee string   `json:"marquee"`
	Epoch   uint64   `json:"epoch"`
	Volumes []string `json:"volumes,omitempty"` // that it may remove
	Status  int      `json:"status"`
	Lost    bool     `json:"lost,omitempty"`
	Refused bool     `json:"refused,omitempty"` // the host did not begin it
}

func playgroundMoved(e *fleet.Event) told {
	c, ok := read[PlaygroundChange](e)
	if !ok {
		return withError("Its state changed")(e)
	}
	return withError(fmt.Sprintf("It is %s now, after %s", c.To, c.From))(e)
}

func playgroundRequested(e *fleet.Event) told {
	c, ok := read[PlaygroundChange](e)
	if !ok || e.Reason == nil {
		return told{text: "Something was asked of it"}
	}
	return told{text: fmt.Sprintf("%s asked for %s", upper(Actor(e.Reason.Actor)), c.Action)}
}

func operation(what string) func(*fleet.Event) told {
	return func(e *fleet.Event) told {
		o, ok := read[PlaygroundOperation](e)
		if !ok {
			return withError("An operation on its marquee " + what)(e)
		}
		text := fmt.Sprintf("Operation %s on its marquee %s", o.Kind, what)
		switch {
		case o.Refused:
			text = fmt.Sprintf("Operation %s was refused by its marquee", o.Kind)
		case o.Lost:
			text += " and nobody knows how"
		case what == "ended" && o.Status != 0:
			text += fmt.Sprintf(" with status %d", o.Status)
		}
		return withError(text)(e)
	}
}
