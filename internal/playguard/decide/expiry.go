package decide

import (
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
)

// Rules by which playgrounds end.
const (
	RuleWarn   Rule = "expiry.warn"
	RulePark   Rule = "expiry.park"   // its time is over, and it holds work
	RuleExpire Rule = "expiry.expire" // its time is over
)

// Guards of ends.
const (
	GuardReclaims Guard = "reclaim_budget" // this pass has taken away what it may
)

// Reclaim destroys, unless the host finds work in the checkouts when it looks
// again under its lock.
type Reclaim struct{ Volumes []string }

func (Reclaim) op() {}

// ExitHolds is how a reclaim ends that found work and left everything as it is.
const ExitHolds = 76

// ExitLate is how an operation ends that was ended because its time was over, or what
// it waited for came too late.
const ExitLate = 124

// ExitLeft is how a destroy ends that took everything away but files that the
// SSH user may not remove. It is tried again after LeftPause: only a person can help.
const (
	ExitLeft  = 77
	LeftPause = time.Hour
)

// Warn writes that people are told of an end that comes.
type Warn struct {
	Lead time.Duration // that the warning is for
	At   time.Time     // the end
}

func (Warn) act() {}

// park keeps what is due and holds work, or may: it says why, and stays until
// it is clean, or is given more time.
func park(v *view) *outcome {
	if !v.due() || v.job == JobAlive {
		return nil
	}
	held := clean(v)
	switch {
	case held == nil:
		return nil
	case v.p.State == model.StateHasChanges:
		held.why, held.flag = v.overdueBy()+"; "+held.why, model.AttentionExpired
		return held
	}
	return &outcome{act: Move{From: v.p.State, To: model.StateHasChanges}, why: v.overdueBy() + "; " + held.why}
}

// expire takes away what is due.
func expire(v *view) *outcome {
	if !v.due() {
		return nil
	}
	if o := idle(v); o != nil {
		return o
	}
	return v.reclaim(v.overdueBy())
}

func (v *view) overdueBy() string {
	return fmt.Sprintf("its time was over %s ago", v.in.Now.Sub(v.p.Expiry.At).Round(time.Second))
}

// reclaim takes it away. Volumes go unless they are to stay.
func (v *view) reclaim(why string) *outcome {
	if v.reclaims <= 0 {
		return refuse(GuardReclaims, fmt.Sprintf("%d in a pass", v.in.Policy.ReclaimsPerPass))
	}
	op := Reclaim{}
	if !v.p.KeepVolumes {
		op.Volumes = v.volumes
	}
	return &outcome{act: Remote{Op: op}, why: why}
}

// due reports whether its time is over. Tricks have a deadline instead.
func (v *view) due() bool { return v.p.Trick == nil && v.p.Expiry.Due(v.in.Now, v.in.Policy) }

// warning tells of an end that comes, once for each lead.
func (v *view) warning() []Step {
	if v.p.State != model.StateRunning || v.p.Trick != nil {
		return nil
	}
	lead, owed := v.p.Expiry.Warning(v.in.Now, v.in.Policy)
	if !owed {
		return nil
	}
	return []Step{{v.p.ID, RuleWarn, Warn{lead, v.p.Expiry.At}, "it ends " + ends(v.p.Expiry.At.Sub(v.in.Now))}}
}

func ends(in time.Duration) string {
	if in <= 0 {
		return "now"
	}
	return "in " + in.Round(time.Second).String()
}

// reclaims is how many may still be taken away in this pass.
func reclaims(in Input) int {
	left := in.Policy.ReclaimsPerPass
	for _, p := range in.Playgrounds {
		if p.Op.Kind == model.OpReclaim {
			left--
		}
	}
	return left
}

// takes reports whether a step takes something away by a reclaim.
func (s Step) takes() bool {
	r, ok := s.Act.(Remote)
	if !ok {
		return false
	}
	_, ok = r.Op.(Reclaim)
	return ok
}

// settled writes what the end of an operation means for a record. A reclaim
// that is through leaves a row to be deleted once two looks show nothing; of a
// trick the record stays.
func settled(p model.Playground, a Settle, at time.Time) model.Playground {
	kind := p.Op.Kind
	p.Op = model.Op{}
	switch {
	case kind == model.OpUp:
		p.AppliedAt = at
	case kind == model.OpDestroy && !a.Lost && a.Exit == ExitLeft:
		p.Attention, p.Queued.At = model.AttentionLeft, at
	case kind != model.OpReclaim || a.Lost:
	case p.State == model.StateCompleted:
	case a.Exit == 0 || a.Exit == ExitLeft:
		p.State, p.StateSince, p.Intent, p.IntentSince = model.StateDestroying, at, model.IntentGone, at
		p.Reason, p.Strikes, p.Attention = string(RuleExpire)+": its time was over", model.Strikes{}, ""
		if a.Exit == ExitLeft {
			p.Attention, p.Queued.At = model.AttentionLeft, at
		}
	case a.Exit == ExitHolds && p.State == model.StateRunning:
		p.State, p.StateSince = model.StateHasChanges, at
		p.Reason, p.Strikes, p.Attention = string(RulePark)+": work was found in it when it was to go", model.Strikes{}, model.AttentionExpired
	}
	return p
}
