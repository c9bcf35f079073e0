package decide

import (
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
)

// wait: a health check that has not said yet is no reason for anything.
func wait(v *view) *outcome { return refuse(GuardStarting, v.run.String()) }

// promote writes what is seen: it runs, and it is what was asked for.
func promote(v *view) *outcome {
	return &outcome{act: Move{From: v.p.State, To: model.StateRunning}, why: v.run.String()}
}

// demote writes that somebody stopped or removed it on the host. Data stays,
// nothing is done there.
func demote(v *view) *outcome {
	if o := first(v, confirmed(RuleDemote)); o != nil {
		return o
	}
	why := "stopped on the host"
	if v.is(Absent) {
		why = "removed on the host"
	}
	return &outcome{act: Move{From: v.p.State, To: model.StateStopped}, why: why}
}

// requeue starts the creation job of a pending playground that has none.
func requeue(v *view) *outcome {
	if v.p.Intent != model.IntentUp && v.p.Intent != model.IntentJob {
		return refuse(GuardIntent, "intent is "+string(v.p.Intent))
	}
	if v.job == JobUnknown && v.age() < v.in.Policy.StaleSlow {
		return refuse(GuardYoung, "nothing is known of its job")
	}
	if o := first(v, safe, backoff(func(v *view) time.Time { return v.p.Queued.At })); o != nil {
		return o
	}
	return &outcome{act: Queue{}, why: "pending, and no job works on it"}
}

// recoverInterrupted gives a playground whose job died back to the queue. Its
// job begins again at once unless it would replace what holds somebody's work.
func recoverInterrupted(v *view) *outcome {
	if o := first(v, inBudget); o != nil {
		return o
	}
	return &outcome{
		act: Move{From: v.p.State, To: model.StatePending, Start: safe(v) == nil, Cost: CostRecover},
		why: fmt.Sprintf("interrupted: in progress for %s and nobody works on it", v.age().Round(time.Second)),
	}
}

// repairBy makes the rules that bring up again what should run: with a plain
// up, which touches no checkout and so is allowed over uncommitted work; or,
// on the lowest rung that explains the finding, by writing the compose file
// back first; or, if there is none, by a rollout.
func repairBy(name Rule) func(v *view) *outcome {
	return func(v *view) *outcome { return counted(name, v.repair(name)) }
}

// counted marks an outcome as one of a rule that counts strikes, so that its
// guards do not drop them.
func counted(name Rule, o *outcome) *outcome {
	o.strike = string(name)
	return o
}

func (v *view) repair(name Rule) *outcome {
	if o := first(v, wanted, confirmed(name), grace, noLease); o != nil {
		return o
	}
	if v.spent() {
		return v.giveUp()
	}
	if o := first(v, inBudget); o != nil {
		return o
	}
	why := v.run.String()
	if name == RuleEvent {
		why = v.event + "; " + why
	}
	switch {
	case v.dir.Compose != "" && v.dir.Compose == v.p.Applied:
		return &outcome{act: Remote{Op: Up{}, Cost: CostRepair}, why: why}
	case v.dir.Compose != "" && v.p.Applied == v.p.Desired:
		return &outcome{act: Remote{Op: Files{}, Cost: CostRepair}, why: "the compose file on the host is not the one applied; " + why}
	}
	if o := first(v, clean, cooldown); o != nil {
		return o
	}
	return v.rollout(CostHeal, "no usable compose file on the host; "+why)
}

// giveUp ends repairing: what is down becomes an error, what still partly
// works is left so and flagged.
func (v *view) giveUp() *outcome {
	why := fmt.Sprintf("%d repairs in %s did not help; %s", v.in.Policy.RepairTries, v.in.Policy.RepairWindow, v.run)
	if v.runs() {
		return &outcome{act: Refuse{GuardSpent}, why: why, flag: model.AttentionRepairsSpent}
	}
	return &outcome{why: why, act: Move{From: v.p.State, To: model.StateError, Failure: model.Failure{
		Class: model.ClassUser, Category: model.CategoryRepairsSpent, Text: why,
	}}}
}

// heal rolls out over services that run and do not work.
func heal(v *view) *outcome {
	if o := first(v, wanted, confirmed(RuleHealth)); o != nil {
		return counted(RuleHealth, o)
	}
	if v.spent() {
		return counted(RuleHealth, v.giveUp())
	}
	if o := first(v, rolloutGate...); o != nil {
		return counted(RuleHealth, o)
	}
	return v.rollout(CostHeal, v.run.String())
}

// redefine rolls out a definition that the record has and the host has not.
func redefine(v *view) *outcome {
	if o := first(v, append([]guard{wanted}, rolloutGate...)...); o != nil {
		return o
	}
	return v.rollout(CostRollout, "what runs is not what the record wants; "+v.run.String())
}

// rolloutGate is what every rollout that nobody asked for passes, in order.
// That the transition lands is for whoever applies the step.
var rolloutGate = []guard{clean, inBudget, grace, cooldown}

func (v *view) rollout(cost Cost, why string) *outcome {
	return &outcome{act: Move{From: v.p.State, To: model.StatePending, Owed: model.ActionRollout, Start: true, Cost: cost}, why: why}
}

// rewrite puts directory and compose file back beside a playground that runs;
// no container is touched.
func rewrite(v *view) *outcome {
	if o := first(v, wanted, confirmed(RuleFiles), repairsLeft, inBudget, grace, noLease); o != nil {
		return counted(RuleFiles, o)
	}
	return &outcome{act: Remote{Op: Files{}, Cost: CostRepair}, why: "the compose file on the host is missing or differs"}
}

// retryConflict runs the compose file again after a container name was taken.
func retryConflict(v *view) *outcome {
	if o := first(v, wanted, clean, inBudget, grace, spaced, conflictsLeft); o != nil {
		return o
	}
	return &outcome{
		act: Move{From: v.p.State, To: model.StatePending, Owed: model.ActionRetryCompose, Start: true, Cost: CostConflict},
		why: "a container name was taken",
	}
}

// retry queues a creation again after a failure that may be over.
func retry(v *view) *outcome {
	if o := first(v, wanted, safe, backoff(func(v *view) time.Time { return v.p.StateSince }), inBudget); o != nil {
		return o
	}
	return &outcome{
		act: Move{From: v.p.State, To: model.StatePending, Start: true, Cost: CostRecover},
		why: string(v.p.Failure.Category) + " may be over",
	}
}
