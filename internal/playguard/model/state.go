package model

import "slices"

// State is what the record says a playground is. Destroyed is the absence of
// the row.
type State string

// The nine stored states.
const (
	StatePending    State = "pending"     // requested, nobody works on it yet
	StateInProgress State = "in_progress" // a creation job has claimed it
	StateRunning    State = "running"     // up, and the health gate passed
	StateError      State = "error"       // a step failed; stays visible
	StateHasChanges State = "has_changes" // expiry fell due over uncommitted work; parked, still running
	StateCompleted  State = "completed"   // a trick that finished
	StateStopping   State = "stopping"    // a person's stop is under way
	StateStopped    State = "stopped"     // stopped, data kept
	StateDestroying State = "destroying"  // teardown under way; no way back
)

// States lists the stored states.
func States() []State {
	return []State{
		StatePending, StateInProgress, StateRunning, StateError, StateHasChanges,
		StateCompleted, StateStopping, StateStopped, StateDestroying,
	}
}

// Intent is what people want of a playground. Only actions write it; looking
// at a host never does.
type Intent string

// Intents.
const (
	IntentUp      Intent = "up"
	IntentStopped Intent = "stopped"
	IntentGone    Intent = "gone"
	IntentJob     Intent = "job" // a trick: runs to its end once
)

// transitions are the edges of intent: what actions and the jobs they start
// may do. The empty state stands for no row. Beyond the published table it
// holds the edges that the published actions need (a rollout goes through
// pending; a stop may come at any time of a life).
var transitions = map[State][]State{
	"":              {StatePending},
	StatePending:    {StateInProgress, StateCompleted, StateStopping, StateDestroying}, // completed: a trick that was not to begin any more
	StateInProgress: {StateRunning, StateError, StatePending, StateStopping, StateDestroying},
	StateRunning:    {StateHasChanges, StateCompleted, StateError, StateStopping, StatePending, StateDestroying},
	StateError:      {StatePending, StateCompleted, StateStopping, StateDestroying}, // completed: a trick that could not be brought up
	StateHasChanges: {StateRunning, StatePending, StateStopping, StateDestroying},
	StateCompleted:  {StateDestroying},
	StateStopping:   {StateStopped, StateDestroying},
	StateStopped:    {StatePending, StateDestroying},
	StateDestroying: {""},
}

// observed are the edges that only evidence takes, each with an audit entry.
// They are kept apart: in transitions they would be legal for every caller.
var observed = map[State][]State{
	StatePending:    {StateRunning},
	StateStopped:    {StateRunning},
	StateError:      {StateRunning},
	StateInProgress: {StateRunning, StatePending},
	StateRunning:    {StateStopped},
}

// failing are the edges of recording a failure. A parked, finished or ending
// playground keeps its state; its failure is only noted.
var failing = []State{StatePending, StateInProgress, StateRunning, StateStopping}

// CanTransition reports whether an action or its job may go from one state to
// the other; the empty state stands for no row.
func CanTransition(from, to State) bool { return slices.Contains(transitions[from], to) }

// CanObserve reports whether evidence may take a playground from one state to
// the other.
func CanObserve(from, to State) bool { return slices.Contains(observed[from], to) }

// CanFail reports whether a failure may take a playground in this state to
// error.
func CanFail(from State) bool { return slices.Contains(failing, from) }
