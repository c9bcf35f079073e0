package decide

import (
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// guard refuses what a rule would do; nil lets it.
type guard func(v *view) *outcome

// first asks guards in order and returns the first refusal; nil if there is
// none.
func first(v *view, guards ...guard) *outcome {
	for _, g := range guards {
		if o := g(v); o != nil {
			return o
		}
	}
	return nil
}

// confirmed counts this look for a worsening, and lets nothing happen before
// enough complete looks have shown it.
func confirmed(kind Rule) guard {
	return func(v *view) *outcome {
		pol := v.in.Policy
		s := v.p.Strikes.Add(string(kind), v.in.Look.To(), pol.StrikeGap, pol.StrikeMemory)
		switch {
		case s.Count >= pol.StrikesNeeded:
			return nil
		case s.Equal(v.p.Strikes):
			return &outcome{act: Refuse{GuardOneLook}, why: v.run.String(), strike: string(kind)}
		}
		return &outcome{act: Strike{s}, why: v.run.String(), strike: string(kind)}
	}
}

// clean refuses when work could be lost.
func clean(v *view) *outcome {
	switch v.dirt {
	case observe.Dirty:
		return refuse(GuardDirty, v.dirtWhy)
	case observe.DirtUnknown:
		return refuse(GuardDirt, v.dirtWhy)
	}
	return nil
}

// safe refuses to go on with a replacement when work could be lost.
func safe(v *view) *outcome {
	if v.replacementOwed() {
		return clean(v)
	}
	return nil
}

func inBudget(v *view) *outcome {
	if v.left <= 0 {
		return refuse(GuardBudget, "this pass has begun what it may")
	}
	return nil
}

// since refuses while less than wait has passed after at; a zero time is long
// ago.
func since(v *view, at time.Time, wait time.Duration, g Guard) *outcome {
	if past := v.in.Now.Sub(at); !at.IsZero() && past < wait {
		return refuse(g, fmt.Sprintf("%s of %s", past.Round(time.Second), wait))
	}
	return nil
}

func grace(v *view) *outcome {
	return since(v, v.p.AppliedAt, v.in.Policy.ApplyGrace, GuardGrace)
}

func cooldown(v *view) *outcome {
	return since(v, v.p.RolledAt, v.in.Policy.RolloutCooldown, GuardCooldown)
}

// backoff waits longer with each try, counted from the given time.
func backoff(from func(v *view) time.Time) guard {
	return func(v *view) *outcome {
		pol := v.in.Policy
		return since(v, from(v), model.Backoff(v.p.Queued.Tries, pol.RequeueMin, pol.RequeueMax), GuardBackoff)
	}
}

func wanted(v *view) *outcome {
	if v.p.Intent != model.IntentUp {
		return refuse(GuardIntent, "intent is "+string(v.p.Intent))
	}
	return nil
}

func idle(v *view) *outcome {
	if v.job == JobAlive {
		return refuse(GuardJob, "")
	}
	return nil
}

func noLease(v *view) *outcome {
	if v.in.Now.Before(v.p.Repair.Until) {
		return refuse(GuardLease, "until "+v.p.Repair.Until.UTC().Format(time.RFC3339))
	}
	return nil
}

func repairsLeft(v *view) *outcome {
	if v.spent() {
		return refuse(GuardSpent, fmt.Sprintf("%d in %s", v.in.Policy.RepairTries, v.in.Policy.RepairWindow))
	}
	return nil
}

func spaced(v *view) *outcome {
	return since(v, v.p.Conflicts.Last(), v.in.Policy.ConflictSpacing, GuardSpacing)
}

func conflictsLeft(v *view) *outcome {
	pol := v.in.Policy
	if n := v.p.Conflicts.Within(v.in.Now, pol.ConflictWindow); n >= pol.ConflictTries {
		return refuse(GuardConflicts, fmt.Sprintf("%d in the last %s", n, pol.ConflictWindow))
	}
	return nil
}
