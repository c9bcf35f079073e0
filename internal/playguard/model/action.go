package model

import (
	"slices"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Action is something a person asks for. The names are the wire's.
type Action string

// Actions of playgrounds declared by a directory.
const (
	ActionCreate       Action = "create"
	ActionRollout      Action = "rollout"       // render, up; unchanged services keep running
	ActionHardRestart  Action = "hard_restart"  // down, then up
	ActionRetryCompose Action = "retry_compose" // run the current compose file again
	ActionStop         Action = "stop"
	ActionStart        Action = "start"
	ActionDestroy      Action = "destroy" // asks nobody about dirty work
)

type actionRule struct {
	from   []State
	intent Intent
	to     State
}

var deployed = []State{StateRunning, StateHasChanges, StateError}

var actions = map[Action]actionRule{
	ActionRollout:      {deployed, IntentUp, StatePending},
	ActionHardRestart:  {deployed, IntentUp, StatePending},
	ActionRetryCompose: {deployed, IntentUp, StatePending},
	ActionStart:        {[]State{StateStopped}, IntentUp, StatePending},
	ActionStop:         {[]State{StatePending, StateInProgress, StateRunning, StateHasChanges, StateError}, IntentStopped, StateStopping},
	ActionDestroy: {[]State{
		StatePending, StateInProgress, StateRunning, StateError, StateHasChanges, StateCompleted, StateStopping, StateStopped,
	}, IntentGone, StateDestroying},
}

// Actions lists what may be asked of an existing playground.
func Actions() []Action {
	return []Action{ActionRollout, ActionHardRestart, ActionRetryCompose, ActionStart, ActionStop, ActionDestroy}
}

// Allows reports whether an action may be asked for in this state.
func (s State) Allows(a Action) bool { return slices.Contains(actions[a].from, s) }

// Request writes what a person asks for into the record: intent, state, and
// what is owed. Strikes, tries and flags of the time before are dropped. An
// action that the state does not allow is a conflict and changes nothing.
func (p Playground) Request(a Action, at time.Time) (Playground, error) {
	rule, ok := actions[a]
	if !ok {
		return p, fleet.Errorf(fleet.CodeInvalidArgument, "unknown action %q; known are %s", clip(string(a)), list(Actions()))
	}
	if !p.State.Allows(a) {
		return p, fleet.Errorf(fleet.CodeConflict, "%s is not possible while the playground is %s; it is from %s", a, p.State, list(rule.from)).
			With(fleet.DetailReason, "state")
	}
	if p.Trick != nil && a != ActionDestroy {
		return p, fleet.Errorf(fleet.CodeConflict, "%s is not possible with a trick, which runs to its end by itself", a).
			With(fleet.DetailReason, "trick").With(fleet.DetailRemedy, "cancel it with 'fuse trick cancel', or destroy it")
	}
	if p.Intent != IntentJob || rule.intent != IntentUp {
		p.Intent = rule.intent
	}
	p.IntentSince, p.State, p.StateSince = at, rule.to, at
	p.Reason, p.Attention, p.Strikes = "requested: "+string(a), "", Strikes{}
	p.Queued, p.Repairs, p.Conflicts, p.Repair = Queued{}, nil, nil, RepairLease{}
	p.Owed = ""
	if rule.to == StatePending {
		p.Owed, p.Queued.At = a, at
	}
	return p, nil
}

// list names values for a person.
func list[T ~string](values []T) string {
	words := make([]string, len(values))
	for i, v := range values {
		words[i] = string(v)
	}
	return strings.Join(words, ", ")
}
