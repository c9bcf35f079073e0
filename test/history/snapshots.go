package history

import (
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// Verbs about snapshots. The ID of such an operation is the snapshot's, also of a
// Look in a history of snapshots.
const (
	Take    Verb = "take"
	Restore Verb = "restore"
	Remove  Verb = "remove"
)

// stage is where a snapshot stands. Its id is made by the server, so one that
// nobody was told of may begin at any time.
type stage int

const (
	unborn stage = iota
	creating
	ready
	restoring
	broken
	deleting
	gone
)

var stages = map[string]stage{
	"creating": creating, "ready": ready, "restoring": restoring, "error": broken, "deleting": deleting,
}

// snapshot is the state of the model: one snapshot's id. told: a client was told
// that it is ready, so it ends only by an order.
type snapshot struct {
	stage stage
	told  bool
}

// CheckSnapshots is Check of a history of snapshots.
func CheckSnapshots(ops []Op, limit time.Duration) (undecided bool, problem string) {
	byID := map[string][]porcupine.Operation{}
	for _, op := range ops {
		byID[op.ID] = append(byID[op.ID], snapshotParts(op)...)
	}
	for id, history := range byID {
		switch porcupine.CheckOperationsTimeout(snapshotModel, history, limit) {
		case porcupine.Illegal:
			return false, fmt.Sprintf("no order explains what clients saw of %s:\n%s", id, Of(ops, id))
		case porcupine.Unknown:
			undecided = true
		}
	}
	return undecided, ""
}

// snapshotParts splits an operation where others may see its middle.
func snapshotParts(op Op) []porcupine.Operation {
	at := func(half string, ret int64) porcupine.Operation {
		return porcupine.Operation{ClientId: op.Client, Input: part{op, half}, Call: op.Call, Output: op.Outcome, Return: ret}
	}
	switch {
	case op.Outcome == Refused, op.Verb == Look && op.Outcome != Done && op.Outcome != NotFound:
		return nil
	case op.Verb == Look:
		return []porcupine.Operation{at(whole, op.Return)}
	case op.Outcome == Done:
		return []porcupine.Operation{at(intend, op.Return), at(finish, op.Return)}
	case op.Verb == Remove && op.Outcome == NotFound:
		return []porcupine.Operation{at(whole, op.Return)}
	case op.Verb == Take || op.Outcome == NotFound: // it tells nothing of an id
		return nil
	}
	return []porcupine.Operation{at(intend, Never)}
}

var snapshotModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{snapshot{}} },
	Step: func(state, input, _ any) []any {
		s, _ := state.(snapshot)
		p, _ := input.(part)
		var out []any
		for _, s := range s.reached() {
			for _, next := range s.apply(p) {
				if !slices.Contains(out, any(next)) {
					out = append(out, next)
				}
			}
		}
		return out
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(input, output any) string {
		p, _ := input.(part)
		return fmt.Sprintf("%s %s %v", p.op.Verb, p.half, output)
	},
}).ToModel()

// byItself are the steps that nobody has to ask for: what was begun goes on,
// fails where no one was told that it had not, and is tried again.
var byItself = map[stage][]stage{
	creating: {ready, broken, gone}, restoring: {ready}, broken: {deleting}, deleting: {gone, broken},
}

// reached is what may have become of a snapshot by itself.
func (s snapshot) reached() []snapshot {
	out := []snapshot{s}
	for i := 0; i < len(out); i++ {
		next := byItself[out[i].stage]
		if out[i].stage == unborn {
			next = []stage{creating}
		}
		for _, to := range next {
			if n := (snapshot{to, s.told}); !(s.told && out[i].stage == creating) && !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	return out
}

func (s snapshot) apply(p part) []snapshot {
	in := func(want ...stage) bool { return slices.Contains(want, s.stage) }
	only := func(ok bool, to stage) []snapshot {
		if !ok {
			return nil
		}
		return []snapshot{{to, s.told}}
	}
	switch p.op.Verb {
	case Take:
		if p.half == intend {
			s.told = true
			return only(in(unborn), creating)
		}
		return only(in(creating), ready)
	case Restore:
		switch {
		case p.half == finish:
			return only(in(restoring, ready), ready)
		case p.op.Outcome == Done:
			return only(in(ready), restoring)
		case s.stage == ready:
			return []snapshot{s, {restoring, s.told}}
		}
	case Remove:
		switch {
		case p.op.Outcome == NotFound:
			return only(in(unborn, gone), s.stage)
		case p.half == finish:
			return only(in(deleting, gone), gone)
		case p.op.Outcome == Done:
			if s.stage == gone { // another has ended it meanwhile
				return []snapshot{s}
			}
			return only(in(ready, broken, deleting), deleting)
		case in(ready, broken):
			return []snapshot{s, {deleting, s.told}}
		}
	case Look:
		if p.op.Outcome == NotFound {
			return only(in(unborn, gone), s.stage)
		}
		return only(s.stage == stages[p.op.State], s.stage)
	}
	return []snapshot{s}
}
