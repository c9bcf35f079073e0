package decide

import (
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// Stamp is what carrying out a step adds to it.
type Stamp struct {
	At    time.Time
	OpID  string // of the operation that a Remote step starts
	Epoch uint64 // of the lease
}

// Apply returns the record after a step was carried out, and false if its row
// is gone. Budgets are charged here and nowhere else, so a step that did not
// land costs nothing. Steps about others leave the record as it is.
func Apply(p model.Playground, s Step, pol model.Policy, at Stamp) (model.Playground, bool) {
	if s.Playground != p.ID {
		return p, true
	}
	switch a := s.Act.(type) {
	case Move:
		p = moved(p, a, s, at)
	case Queue:
		p.Queued = model.Queued{At: at.At, Tries: p.Queued.Tries + 1}
	case Strike:
		p.Strikes = a.Strikes
	case Sight:
		p.LastUp = a.Boot
	case ClearFailure:
		p.Failure = model.Failure{}
	case Flag:
		p.Attention = a.Attention
	case Settle:
		p = settled(p, a, at.At)
	case Warn:
		p.Expiry.Warned, p.Expiry.WarnedAt = a.Lead, at.At
	case Close, End:
		p = applyTrick(p, a)
	case Remote:
		kind := VerbOf(a.Op).Kind()
		p.Op = model.Op{ID: at.OpID, Kind: kind, Started: at.At, Epoch: at.Epoch}
		p.Strikes = model.Strikes{}
		if kind == model.OpUp {
			p.AppliedAt = at.At
		}
	case Delete:
		return p, false
	}
	return charge(p, s, pol, at.At), true
}

func moved(p model.Playground, a Move, s Step, at Stamp) model.Playground {
	p.State, p.StateSince = a.To, at.At
	p.Reason = string(s.Rule)
	if s.Why != "" {
		p.Reason += ": " + s.Why
	}
	p.Strikes, p.Attention = model.Strikes{}, ""
	switch a.To {
	case model.StateRunning:
		p.Failure, p.Owed, p.Queued = model.Failure{}, "", model.Queued{}
		if p.Applied != p.Desired { // the gate saw the wanted definition at work
			p.Applied = p.Desired
		}
	case model.StateError:
		p.Failure = a.Failure
	case model.StatePending:
		if a.Owed != "" {
			p.Owed = a.Owed
		}
		p.Queued = model.Queued{At: at.At, Tries: p.Queued.Tries + 1}
		if a.Spent != nil {
			p = applyTrick(p, a)
		}
	case model.StateDestroying: // a record that was kept long enough
		p.Intent, p.IntentSince = model.IntentGone, at.At
	}
	return p
}

func charge(p model.Playground, s Step, pol model.Policy, at time.Time) model.Playground {
	switch s.cost() {
	case CostRollout:
		p.RolledAt = at
	case CostHeal:
		p.RolledAt = at
		p.Repairs = p.Repairs.Add(at)
	case CostRepair:
		p.Repairs = p.Repairs.Add(at)
		p.Repair = model.RepairLease{Reason: string(s.Rule), Until: at.Add(pol.RepairLease)}
	case CostConflict:
		p.Conflicts = p.Conflicts.Add(at)
	}
	return p
}

// ApplyMarquee returns the marquee's record after a step was carried out.
func ApplyMarquee(m model.Marquee, s Step, at time.Time) model.Marquee {
	switch a := s.Act.(type) {
	case Miss:
		m.Streak, m.Trouble = a.Streak, string(a.Trouble)
	case Clean:
		m.Streak, m.Trouble = model.Streak{}, string(observe.ReasonNone)
	case Quarantine:
		m.Reach, m.ReachSince = model.ReachQuarantined, at
	case Return:
		m.Reach, m.ReachSince = model.ReachOK, at
	}
	return m
}
