package records

import (
	"encoding/json"

	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/state"
)

// Note is an event in the making. Payload is anything that is a JSON object.
type Note struct {
	Type    string
	Reason  fleet.Reason
	Error   string
	Payload any
}

func (n Note) event(entity, id, owner string) fleet.Event {
	e := fleet.Event{EntityType: entity, EntityID: id, Owner: owner, Type: n.Type, Error: n.Error, Reason: &n.Reason}
	if n.Payload != nil {
		if raw, err := json.Marshal(n.Payload); err == nil { // plain structs of this program
			e.Payload = raw
		}
	}
	return e
}

// Tell writes an event of a playground with the commit that makes it true.
func Tell(tx *state.Tx, p *Playground, n Note) {
	tx.Emit(n.event(fleet.EntityPlayground, string(p.ID), p.Owner))
}

// TellMarquee writes an event of a marquee.
func TellMarquee(tx *state.Tx, m *Marquee, n Note) {
	tx.Emit(n.event(fleet.EntityMarquee, string(m.ID), m.Owner))
}

// ByLoop is the reason of what Playguard does by itself.
func ByLoop(rule, evidence string) fleet.Reason {
	return fleet.Reason{Actor: fleet.ActorPlayguard, Rule: rule, Evidence: evidence}
}

// Moved writes that a playground changed its state.
func Moved(tx *state.Tx, p *Playground, s decide.Step, epoch uint64) {
	m, ok := s.Act.(decide.Move)
	if !ok {
		return
	}
	Tell(tx, p, Note{
		Type: fleet.EventPlaygroundStateChanged, Reason: ByLoop(fleet.RuleSeen, s.Why), Error: m.Failure.Text,
		Payload: events.PlaygroundChange{From: string(m.From), To: string(m.To), Action: string(m.Owed), Rule: string(s.Rule), Epoch: epoch},
	})
}
