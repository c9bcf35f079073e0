package decide

import (
	"github.com/fusevm/fuse/internal/playguard/model"
)

// Rules about playgrounds.
const (
	RuleJob         Rule = "job.active"
	RulePromote     Rule = "truth.promote"
	RuleDemote      Rule = "truth.demote"
	RuleClear       Rule = "truth.clear"
	RuleLeave       Rule = "truth.leave"
	RuleStarting    Rule = "truth.starting"
	RuleConverged   Rule = "converged"
	RuleTrick       Rule = "trick.leave"
	RuleRequeue     Rule = "pending.requeue"
	RuleFresh       Rule = "create.fresh"
	RuleRecover     Rule = "create.recover"
	RuleEvent       Rule = "repair.host_event"
	RuleLeftovers   Rule = "repair.leftovers"
	RuleServices    Rule = "repair.services"
	RuleCrashed     Rule = "repair.crashed"
	RuleHealth      Rule = "drift.health"
	RuleDefinition  Rule = "drift.definition"
	RuleFiles       Rule = "drift.files"
	RuleParked      Rule = "parked"
	RuleConflict    Rule = "error.conflict"
	RuleRetry       Rule = "error.retry"
	RuleFinal       Rule = "error.final"
	RuleStop        Rule = "stop.finish"
	RuleStopped     Rule = "stop.done"
	RuleRunsStopped Rule = "stopped.runs"
	RuleCleanup     Rule = "cleanup.finish"
	RuleDestroy     Rule = "destroy.redrive"
	RuleDestroyed   Rule = "destroy.done"
)

// rule is a row of the decision table. decide returns nil if it does not apply.
type rule struct {
	name   Rule
	decide func(v *view) *outcome
}

// when makes a rule of a condition and what follows.
func when(name Rule, applies func(v *view) bool, then func(v *view) *outcome) rule {
	return rule{name, func(v *view) *outcome {
		if !applies(v) {
			return nil
		}
		return then(v)
	}}
}

func always(*view) bool { return true }

func keepIt(*view) *outcome { return keep("") }

func jobActive() rule {
	return rule{RuleJob, idle}
}

// rules are asked in order; the first that applies decides. The last of each
// state applies to everything.
var rules = map[model.State][]rule{
	model.StatePending: {
		jobActive(),
		when(RulePromote, func(v *view) bool { return v.promotable() && !v.replacementOwed() }, promote),
		when(RuleStarting, func(v *view) bool { return v.is(Starting) && !v.replacementOwed() }, wait),
		when(RuleRequeue, always, requeue),
	},
	model.StateInProgress: {
		jobActive(),
		when(RulePromote, func(v *view) bool { return v.promotable() && v.p.Owed != model.ActionHardRestart }, promote),
		when(RuleFresh, func(v *view) bool { return !v.stale() }, func(v *view) *outcome { return refuse(GuardYoung, v.run.String()) }),
		when(RuleRecover, always, recoverInterrupted),
	},
	model.StateRunning: {
		{RulePark, park},
		{RuleExpire, expire},
		when(RuleTrick, func(v *view) bool { return v.p.Intent == model.IntentJob }, keepIt),
		jobActive(),
		when(RuleLeftovers, func(v *view) bool { return len(v.run.Leftovers) > 0 && v.p.Intent == model.IntentUp }, repairBy(RuleLeftovers)),
		when(RuleEvent, func(v *view) bool {
			return v.event != "" && v.p.Intent == model.IntentUp && v.is(AtRest, Absent, Crashed)
		}, repairBy(RuleEvent)),
		when(RuleDemote, func(v *view) bool {
			return v.is(AtRest, Absent) || v.is(Crashed) && v.p.Intent != model.IntentUp
		}, demote),
		when(RuleCrashed, func(v *view) bool { return v.is(Crashed) }, repairBy(RuleCrashed)),
		when(RuleHealth, func(v *view) bool { return v.is(Degraded) && len(v.run.Unhealthy) > 0 }, heal),
		when(RuleServices, func(v *view) bool { return v.is(Degraded) }, repairBy(RuleServices)),
		when(RuleStarting, func(v *view) bool { return v.is(Starting) }, wait),
		when(RuleClear, func(v *view) bool { return v.p.Failure.Recoverable() }, func(v *view) *outcome {
			return &outcome{act: ClearFailure{}, why: "healthy, and " + string(v.p.Failure.Category) + " is over"}
		}),
		when(RuleDefinition, func(v *view) bool { return len(v.run.Outdated) > 0 || v.p.Applied != v.p.Desired }, redefine),
		when(RuleFiles, func(v *view) bool { return v.dir.Compose != v.p.Desired }, rewrite),
		when(RuleConverged, always, keepIt),
	},
	model.StateHasChanges: {
		{RulePark, park},
		{RuleExpire, expire},
		when(RuleParked, func(v *view) bool { return v.is(Healthy) }, keepIt),
		when(RuleParked, always, func(v *view) *outcome {
			return &outcome{act: Refuse{GuardParked}, why: v.run.String(), flag: model.AttentionParked}
		}),
	},
	model.StateError: {
		when(RuleTrick, func(v *view) bool { return v.p.Intent == model.IntentJob }, keepIt),
		jobActive(),
		when(RulePromote, func(v *view) bool {
			return v.promotable() && (v.p.Failure.Temporary() || v.p.Failure.Recoverable())
		}, promote),
		when(RuleFinal, func(v *view) bool { return !v.p.Failure.Temporary() }, func(v *view) *outcome {
			return &outcome{act: Keep{}, why: string(v.p.Failure.Category), flag: v.p.Attention}
		}),
		when(RuleStarting, func(v *view) bool { return v.is(Starting) }, wait),
		when(RuleConflict, func(v *view) bool { return v.p.Failure.Category == model.CategoryConflict }, retryConflict),
		when(RuleRetry, always, retry),
	},
	model.StateStopping: {
		jobActive(),
		when(RuleStop, (*view).runs, func(v *view) *outcome {
			return &outcome{act: Remote{Op: Stop{}}, why: v.run.String()}
		}),
		when(RuleStopped, always, func(v *view) *outcome {
			// How its programs ended says nothing: they were told to.
			return &outcome{act: Move{From: v.p.State, To: model.StateStopped}, why: "nothing of it runs"}
		}),
	},
	model.StateStopped: {
		when(RulePromote, func(v *view) bool { return v.promotable() }, func(v *view) *outcome {
			if o := since(v, v.p.StateSince, v.in.Policy.ApplyGrace, GuardGrace); o != nil {
				return o
			}
			return promote(v)
		}),
		when(RuleRunsStopped, (*view).runs, func(v *view) *outcome {
			return &outcome{act: Keep{}, why: v.run.String(), flag: model.AttentionStoppedButRuns}
		}),
		when(RuleLeave, always, keepIt),
	},
	model.StateCompleted: {
		jobActive(),
		when(RuleCleanup, (*view).runs, func(v *view) *outcome {
			return &outcome{act: Remote{Op: Down{}}, why: v.run.String()}
		}),
		when(RuleLeave, always, keepIt),
	},
	model.StateDestroying: {
		jobActive(),
		when(RuleDestroyed, (*view).empty, func(v *view) *outcome {
			if o := first(v, confirmed(RuleDestroyed)); o != nil {
				return o
			}
			return &outcome{act: Delete{}, why: "two complete looks show nothing of it"}
		}),
		when(RuleDestroy, always, func(v *view) *outcome {
			o := &outcome{act: Remote{Op: v.destroy()}, why: v.run.String()}
			if v.p.Attention == model.AttentionLeft {
				if wait := since(v, v.p.Queued.At, LeftPause, GuardBackoff); wait != nil {
					o, wait.why = wait, "only root on the marquee can remove what is left; "+wait.why
				}
				o.flag = model.AttentionLeft
			}
			return o
		}),
	},
}

// rulesOf are the rules of a record's state.
func rulesOf(p model.Playground) []rule {
	if p.Trick != nil && p.Intent == model.IntentJob && trickRules[p.State] != nil {
		return trickRules[p.State]
	}
	return rules[p.State]
}

// promotable asks for less of a trick: that any of it runs.
func (v *view) promotable() bool {
	return v.gate() || v.p.Intent == model.IntentJob && v.runs()
}

// replacementOwed reports whether what runs is only what is to be replaced.
func (v *view) replacementOwed() bool {
	return v.p.Owed == model.ActionRollout || v.p.Owed == model.ActionHardRestart
}

// stale reports whether whoever claimed the playground has stopped working on
// it. An operation on the host was ruled out before.
func (v *view) stale() bool {
	if v.job == JobNone {
		return v.age() >= v.in.Policy.StaleFast
	}
	return v.age() >= v.in.Policy.StaleSlow
}

// empty reports whether a complete look shows nothing that a destroy has to
// remove.
func (v *view) empty() bool {
	return v.containers == 0 && !v.dir.Exists && len(v.destroy().Volumes) == 0
}

// destroy removes volumes only if people want the playground gone and did not
// ask to keep them, and only those that the look showed with its labels.
func (v *view) destroy() Destroy {
	if v.p.KeepVolumes || v.p.Intent != model.IntentGone {
		return Destroy{}
	}
	return Destroy{Volumes: v.volumes}
}
