package decide

import (
	"fmt"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// Rule names why a step is there. Each step has exactly one.
type Rule string

// Guard names what kept a rule from acting. Each refusal has exactly one.
type Guard string

// Guards.
const (
	GuardUnseen      Guard = "unseen"       // the marquee or the project could not be seen
	GuardPartial     Guard = "partial"      // it was seen in part
	GuardDisabled    Guard = "disabled"     // people do not allow the marquee to be used
	GuardQuarantined Guard = "quarantined"  // probed only
	GuardSuperseded  Guard = "superseded"   // the host has seen a newer lease than ours
	GuardNewer       Guard = "newer_record" // the record was written after the look was sent
	GuardForeign     Guard = "foreign"      // ownership is not proven
	GuardOp          Guard = "op_in_flight"
	GuardJob         Guard = "job_active"
	GuardYoung       Guard = "young"    // its job may still be at work
	GuardOneLook     Guard = "one_look" // a second look must confirm
	GuardStarting    Guard = "starting" // a health check has not said yet
	GuardIntent      Guard = "intent"   // nobody wants it up
	GuardGate        Guard = "gate"     // healthy, but not what was asked for
	GuardDirty       Guard = "dirty"    // uncommitted or unpushed work
	GuardDirt        Guard = "dirt_unknown"
	GuardBudget      Guard = "pass_budget"
	GuardGrace       Guard = "apply_grace"
	GuardCooldown    Guard = "rollout_cooldown"
	GuardLease       Guard = "repair_lease"
	GuardSpent       Guard = "repairs_spent"
	GuardBackoff     Guard = "backoff"
	GuardSpacing     Guard = "conflict_spacing"
	GuardConflicts   Guard = "conflict_budget"
	GuardParked      Guard = "parked" // has_changes: never rebuilt over
	GuardReport      Guard = "report_only"
	GuardRows        Guard = "rows_older_than_look"
	GuardRolledBack  Guard = "records_rolled_back" // the host remembers a newer epoch than the records
)

// Step is one thing to do, or not to do, for one reason.
type Step struct {
	Playground model.PlaygroundID // empty: it is about the marquee, or an orphan
	Rule       Rule
	Act        Act
	Why        string // evidence, for people
}

// Act is what a step does: one of the types below.
type Act interface{ act() }

// Cost is what a step takes from the budgets when it really happens.
type Cost string

// Costs. Each but CostNone is one of the pass's rollouts too.
const (
	CostNone     Cost = ""
	CostRollout  Cost = "rollout"
	CostHeal     Cost = "healing rollout" // a rollout that counts as a repair
	CostRepair   Cost = "repair"
	CostConflict Cost = "conflict retry"
	CostRecover  Cost = "recovery"
)

// Acts on a playground's record and host.
type (
	// Keep does nothing: record and host agree, or nothing may be concluded.
	Keep struct{}
	// Refuse does nothing: the rule would act, and the guard does not let it.
	Refuse struct{ Guard Guard }
	// Move writes a state. With Start, which goes with pending only, it also
	// queues a creation job, for Owed or, if that is empty, what was owed before.
	Move struct {
		From, To model.State
		Failure  model.Failure // with To error
		Owed     model.Action
		Start    bool
		Cost     Cost
		Spent    []string // not nil: a trick is tried again; containers of its last attempt
	}
	// Queue queues the creation job of a pending playground again.
	Queue struct{}
	// Strike writes that one more complete look showed a worsening; the zero
	// Strikes, that the worsening is over.
	Strike struct{ Strikes model.Strikes }
	// Sight writes in which life of the host it was last seen running.
	Sight struct{ Boot model.Boot }
	// ClearFailure drops a failure that is over.
	ClearFailure struct{}
	// Flag writes what a person should look at; empty drops the flag.
	Flag struct{ Attention model.Attention }
	// Settle writes the end of the operation in flight.
	Settle struct {
		Op   string
		Lost bool // it left no exit status
		Exit int
	}
	// Remote starts an operation on the host.
	Remote struct {
		Op   Op
		Cost Cost
	}
	// Delete removes the row of a playground that is gone.
	Delete struct{}
)

// Acts on the marquee's record.
type (
	// Miss writes that a look saw nothing.
	Miss struct {
		Streak  model.Streak
		Trouble observe.Reason
	}
	// Clean writes that a look saw everything, after one that did not.
	Clean struct{}
	// Quarantine takes the marquee out of the loop.
	Quarantine struct{}
	// Return takes it back.
	Return struct{}
	// Alarm tells people, once per change of trouble.
	Alarm struct{ Trouble string }
	// Report names what is ours and has no row. Nothing is removed.
	Report struct{ Project model.Project }
)

func (Keep) act()         {}
func (Refuse) act()       {}
func (Move) act()         {}
func (Queue) act()        {}
func (Strike) act()       {}
func (Sight) act()        {}
func (ClearFailure) act() {}
func (Flag) act()         {}
func (Settle) act()       {}
func (Remote) act()       {}
func (Delete) act()       {}
func (Miss) act()         {}
func (Clean) act()        {}
func (Quarantine) act()   {}
func (Return) act()       {}
func (Alarm) act()        {}
func (Report) act()       {}

// Works reports whether the step sets work in motion: an operation on the
// host, or a creation job that will start one.
func (s Step) Works() bool {
	switch a := s.Act.(type) {
	case Remote, Queue:
		return true
	case Move:
		return a.Start
	}
	return false
}

// Writes reports whether the step changes a playground's record, strikes
// aside.
func (s Step) Writes() bool {
	switch s.Act.(type) {
	case Move, Sight, ClearFailure, Flag, Settle, Delete, Remote, Queue, Warn, Close, End:
		return true
	}
	return false
}

// cost is what the step takes from the budget of the pass.
func (s Step) cost() Cost {
	switch a := s.Act.(type) {
	case Remote:
		return a.Cost
	case Move:
		return a.Cost
	}
	return CostNone
}

// Does says what the step does, for people.
func (s Step) Does() string { return describe(s.Act) }

// String is the line that explain prints.
func (s Step) String() string {
	who := "marquee"
	if s.Playground != "" {
		who = string(s.Playground)
	}
	line := fmt.Sprintf("%s: %s [%s]", who, describe(s.Act), s.Rule)
	if s.Why != "" {
		line += " " + s.Why
	}
	return line
}

func describe(a Act) string {
	switch a := a.(type) {
	case Keep:
		return "keep"
	case Refuse:
		return "refused by " + string(a.Guard)
	case Move:
		return string(a.From) + " → " + string(a.To)
	case Queue:
		return "queue its job"
	case Strike:
		if a.Strikes.Count == 0 {
			return "no strike"
		}
		return fmt.Sprintf("strike %d", a.Strikes.Count)
	case Sight:
		return "note this life of the host"
	case ClearFailure:
		return "clear failure"
	case Flag:
		if a.Attention == "" {
			return "no flag"
		}
		return "flag " + string(a.Attention)
	case Settle:
		if a.Lost {
			return "operation lost"
		}
		return fmt.Sprintf("operation ended with %d", a.Exit)
	case Remote:
		return "run " + VerbOf(a.Op).String()
	case Delete:
		return "delete the row"
	case Warn:
		return "warn that it ends at " + a.At.UTC().Format(time.RFC3339)
	case Close:
		return fmt.Sprintf("the attempt ended with code %d", a.Attempt.Code)
	case End:
		return "end it: " + string(a.Why)
	case Miss:
		return fmt.Sprintf("miss %d: %s", a.Streak.Count, a.Trouble)
	case Clean:
		return "clean look"
	case Quarantine:
		return "quarantine"
	case Return:
		return "return from quarantine"
	case Alarm:
		return "alarm: " + a.Trouble
	case Report:
		return "report " + a.Project.String()
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", a), "decide.")
}
