package records

import (
	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/state"
)

// Ended tells of a step by which something ends, or will: before it, p is as it
// was.
func Ended(tx *state.Tx, before model.Playground, p *Playground, s decide.Step, epoch uint64) {
	n := Note{Reason: ByLoop(fleet.RuleSeen, s.Why), Payload: events.PlaygroundEnd{At: p.Expiry.At, Rule: string(s.Rule), Epoch: epoch}}
	switch a := s.Act.(type) {
	case decide.Warn:
		n.Type, n.Payload = fleet.EventPlaygroundExpiring, events.PlaygroundEnd{At: a.At, Lead: int64(a.Lead.Seconds()), Rule: string(s.Rule), Epoch: epoch}
	case decide.Close:
		n.Type, n.Error = fleet.EventTrickAttemptEnded, failed(a.Attempt)
		n.Payload = TrickEnd(p, a.Attempt)
	case decide.Move:
		switch {
		case a.To == model.StateHasChanges:
			n.Type, n.Error = fleet.EventPlaygroundParked, s.Why
		case a.To == model.StateCompleted && p.Trick != nil:
			n.Type, n.Error = fleet.EventTrickFinished, failed(p.Trick.Last())
			n.Payload = TrickEnd(p, p.Trick.Last())
		}
	case decide.Settle:
		switch {
		case before.State == p.State:
		case p.State == model.StateDestroying:
			n.Type = fleet.EventPlaygroundExpired
		case p.State == model.StateHasChanges:
			n.Type, n.Error = fleet.EventPlaygroundParked, p.Reason
		}
		if n.Type != "" {
			moved := s
			moved.Act, moved.Why = decide.Move{From: before.State, To: p.State}, p.Reason
			Moved(tx, p, moved, epoch)
		}
	}
	if n.Type != "" {
		Tell(tx, p, n)
	}
}

// failed is why an attempt counts as failed; empty if it does not.
func failed(a model.Attempt) string {
	if a.Code == 0 {
		return ""
	}
	return a.Why
}

// TrickEnd is what events say of the end of a trick.
func TrickEnd(p *Playground, a model.Attempt) events.TrickEnd {
	return events.TrickEnd{Attempt: a.N, Code: a.Code, End: string(a.End), Schedule: p.Trick.Schedule}
}
