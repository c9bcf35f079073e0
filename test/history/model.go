package history

import (
	"fmt"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// phase is where an environment's id stands.
type phase int

const (
	none phase = iota
	making
	running
	draining
	ending
)

var phases = map[string]phase{
	"provisioning": making, "running": running, "draining": draining, "destroying": ending,
}

// id is the state of the model: one environment id.
type id struct {
	phase phase
	// uid of the life; while no answer has told it, "?" and the stamp of the
	// create that may have made it.
	uid string
	// loose: the create was not acknowledged, or only as begun, so it may come
	// to nothing, or to something, at any time.
	loose bool
}

// part is what the model applies: an operation, or one half of it.
type part struct {
	op   Op
	half string
}

// Halves of operations that others can see in between.
const (
	claim  = "claim"  // none -> making
	settle = "settle" // making -> running
	intend = "intend" // -> ending
	finish = "finish" // ending -> none
	whole  = ""
)

// Check reports whether a history is linearizable, and what is wrong if not.
// A search that takes longer than limit is given up as undecided.
func Check(ops []Op, limit time.Duration) (undecided bool, problem string) {
	byID := map[string][]porcupine.Operation{}
	for _, op := range ops {
		byID[op.ID] = append(byID[op.ID], parts(op)...)
	}
	for id, history := range byID {
		switch porcupine.CheckOperationsTimeout(model, history, limit) {
		case porcupine.Illegal:
			return false, fmt.Sprintf("no order explains what clients saw of %s:\n%s", id, Of(ops, id))
		case porcupine.Unknown:
			undecided = true
		}
	}
	return undecided, ""
}

// parts splits an operation where others may see its middle.
func parts(op Op) []porcupine.Operation {
	at := func(half string, ret int64) porcupine.Operation {
		return porcupine.Operation{ClientId: op.Client, Input: part{op, half}, Call: op.Call, Output: op.Outcome, Return: ret}
	}
	switch {
	case op.Verb == Look && op.Outcome != Done && op.Outcome != NotFound:
		return nil
	case op.Verb == Create && op.Outcome == Done:
		return []porcupine.Operation{at(claim, op.Return), at(settle, op.Return)}
	case op.Verb == Create && (op.Outcome == Refused || op.Outcome == Pending):
		return []porcupine.Operation{at(claim, op.Return)}
	case op.Verb == Create:
		return []porcupine.Operation{at(claim, Never)}
	case op.Verb == Destroy && op.Outcome == Done:
		return []porcupine.Operation{at(intend, op.Return), at(finish, op.Return)}
	case op.Outcome == Failed:
		return []porcupine.Operation{at(whole, Never)}
	}
	return []porcupine.Operation{at(whole, op.Return)}
}

var model = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{id{}} },
	Step: func(state, input, _ any) []any {
		s, _ := state.(id)
		p, _ := input.(part)
		var out []any
		for _, s := range s.byItself() {
			for _, next := range s.apply(p) {
				out = append(out, next)
			}
		}
		return out
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(input, output any) string {
		p, _ := input.(part)
		return fmt.Sprintf("%s %s %v %s", p.op.Verb, p.half, output, p.op.UID)
	},
}).ToModel()

// byItself is what may have become of an id without anybody's operation: an
// end goes on, and a create that nobody was told of succeeds or is undone.
func (s id) byItself() []id {
	out := []id{s}
	if s.loose && s.phase == making {
		out = append(out, id{running, s.uid, s.loose}, id{ending, s.uid, s.loose})
	}
	if s.phase == ending || s.loose && s.phase == making {
		out = append(out, id{})
	}
	return out
}

// is reports whether the life may be that of an answer, and the state once it
// is known to be.
func (s id) is(uid string) (id, bool) {
	if s.uid == uid {
		return s, true
	}
	known := s
	known.uid = uid
	return known, strings.HasPrefix(s.uid, "?")
}

func (s id) apply(p part) []id {
	switch p.op.Verb {
	case Create:
		return s.create(p)
	case Look:
		return s.look(p.op)
	case Drain:
		return s.drain(p.op)
	case Destroy, Complete:
		return s.end(p)
	case Died:
		if _, ok := s.is(p.op.UID); (ok || p.op.UID == "") && s.phase != none {
			return []id{s, {ending, s.uid, s.loose}}
		}
	}
	return []id{s}
}

func (s id) create(p part) []id {
	switch {
	case p.half == settle:
		if s.phase == making && s.uid == p.op.UID {
			return []id{{running, s.uid, false}}
		}
		return nil
	case p.op.Outcome == Done:
		if s.phase == none {
			return []id{{making, p.op.UID, false}}
		}
		return nil
	case p.op.Outcome == Pending:
		if s.phase == none {
			return []id{{making, p.op.UID, true}}
		}
		return nil
	case s.phase == none: // it may have begun, and may still
		return []id{s, {making, fmt.Sprint("?", p.op.Call), true}}
	}
	return []id{s}
}

func (s id) look(op Op) []id {
	if op.Outcome == NotFound {
		if s.phase == none {
			return []id{s}
		}
		return nil
	}
	if known, ok := s.is(op.UID); ok && s.phase == phases[op.State] && s.phase != none {
		return []id{known}
	}
	return nil
}

func (s id) drain(op Op) []id {
	switch {
	case op.Outcome == NotFound:
		return []id{s}
	case op.Outcome == Done:
		if known, ok := s.is(op.UID); ok && s.phase == running {
			known.phase = draining
			return []id{known}
		}
		return nil
	case s.phase == running: // a drain that failed leaves it draining
		return []id{s, {draining, s.uid, s.loose}}
	}
	return []id{s}
}

func (s id) end(p part) []id {
	ended := id{ending, s.uid, s.loose}
	switch {
	case p.op.Outcome == Refused:
		return []id{s}
	case p.op.Outcome == NotFound:
		if s.phase == none {
			return []id{s}
		}
		return nil
	case p.half == finish:
		if s.phase == none || s.phase == ending {
			return []id{{}}
		}
		return nil
	case s.phase == none:
		return []id{s}
	case p.op.Outcome == Failed || p.op.Outcome == Lost:
		return []id{s, ended}
	}
	return []id{ended}
}
