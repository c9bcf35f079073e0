package decide

import (
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// view is one playground as a pass sees it.
type view struct {
	*pass
	p          model.Playground
	job        Job
	run        Runtime
	dir        observe.Directory
	containers int
	list       []observe.Container
	volumes    []string
	dirt       observe.Dirt
	dirtWhy    string
	event      string // of the host, that explains why nothing runs
}

// outcome is what a rule decided.
type outcome struct {
	act    Act
	why    string
	strike string // kind of the strikes that the rule counts, if it does
	flag   model.Attention
}

func refuse(g Guard, why string) *outcome { return &outcome{act: Refuse{g}, why: why} }

func keep(why string) *outcome { return &outcome{act: Keep{}, why: why} }

// playground decides about one row.
func (ps *pass) playground(p model.Playground) []Step {
	step := func(rule Rule, act Act, why string) Step { return Step{p.ID, rule, act, why} }
	if p.Revision > ps.in.Sent {
		return []Step{step(RuleNewer, Refuse{GuardNewer}, "the record changed while we looked")}
	}
	look := ps.in.Look.Project(p.Project)
	ops, seen := look.Ops()
	if !seen {
		return []Step{step(RuleBlind, Refuse{GuardPartial}, "its directory could not be read")}
	}
	if act := attach(p.Op, ops, ps.in); act != nil {
		return []Step{step(RuleOp, act, "")}
	}
	if whose := ps.foreign(p, look); whose != "" {
		return ps.noted(p, RuleOwnership, &outcome{act: Refuse{GuardForeign}, why: whose, flag: model.AttentionForeign})
	}
	v := ps.view(p, look)
	for _, r := range rulesOf(p) {
		if o := r.decide(v); o != nil {
			return append(append(ps.noted(p, r.name, o), v.sight()...), v.warning()...)
		}
	}
	panic("decide: the last rule of each state applies to everything; there is none for " + string(p.State))
}

// noted puts the bookkeeping around a rule's step: strikes of a worsening that
// is over go, and the flag is what the rule says.
func (ps *pass) noted(p model.Playground, rule Rule, o *outcome) []Step {
	steps := []Step{{p.ID, rule, o.act, o.why}}
	calm := p.Strikes.Count > 0 && p.Strikes.Kind != o.strike
	switch o.act.(type) {
	case Move, Delete: // these drop strikes and flag themselves
		return steps
	case Strike, Remote: // these replace strikes
		calm = false
	}
	if calm {
		steps = append(steps, Step{p.ID, RuleCalm, Strike{}, p.Strikes.Kind + " is over"})
	}
	if p.Attention != o.flag {
		steps = append(steps, Step{p.ID, RuleFlag, Flag{o.flag}, o.why})
	}
	return steps
}

// attach decides about operations on the host: while one is at work nothing
// else begins, whoever started it; the end of the one in flight is written
// before anything is decided from what is listed.
func attach(claimed model.Op, ops []observe.Op, in Input) Act {
	for _, op := range ops {
		switch {
		case op.Running:
			return Refuse{GuardOp}
		case op.ID == claimed.ID:
			return Settle{Op: op.ID, Lost: op.Lost, Exit: op.Exit}
		}
	}
	switch {
	case claimed.IsZero():
		return nil
	case in.Now.Sub(claimed.Started) < in.Policy.StaleFast:
		return Refuse{GuardOp} // its start may still be on the way
	}
	return Settle{Op: claimed.ID, Lost: true}
}

// foreign says who else uses the playground's name, if anybody.
func (ps *pass) foreign(p model.Playground, look observe.ProjectLook) string {
	others, _ := look.Foreign()
	if len(others) > 0 {
		return fmt.Sprintf("%d containers of others use the project name %s", len(others), p.Project)
	}
	if dir, _ := look.Directory(); dir.Exists && !owned(ps.in.Marquee, dir, p.Project, p.ID) {
		return "its directory is not proven ours: the owner marker is missing, malformed or somebody else's, or it lies elsewhere"
	}
	containers, _ := look.Containers()
	for _, c := range containers {
		if c.Playground != p.ID {
			return "container " + c.Name + " belongs to playground " + string(c.Playground)
		}
	}
	volumes, _ := look.Volumes()
	for _, v := range volumes {
		if v.Playground != p.ID {
			return "volume " + v.Name + " belongs to playground " + string(v.Playground)
		}
	}
	return ""
}

func (ps *pass) view(p model.Playground, look observe.ProjectLook) *view {
	v := &view{pass: ps, p: p, job: ps.in.Jobs[p.ID]}
	containers, _ := look.Containers()
	v.containers, v.list = len(containers), containers
	v.run = Assess(p.Services, containers)
	v.dir, _ = look.Directory()
	volumes, _ := look.Volumes()
	for _, vol := range volumes {
		v.volumes = append(v.volumes, vol.Name)
	}
	v.dirt, v.dirtWhy = look.Dirt()
	v.event, _ = explained(p.LastUp, ps.host, v.run, ps.in.Policy.EventSlack)
	return v
}

// sight notes the life of the host in which a running playground is seen up,
// so that a later life can explain its end.
func (v *view) sight() []Step {
	up := v.run.Condition == Healthy || v.run.Condition == Starting || v.p.Trick != nil && v.runs()
	if v.p.State != model.StateRunning || !up || v.p.LastUp.Equal(v.host.Boot) {
		return nil
	}
	return []Step{{v.p.ID, RuleSight, Sight{v.host.Boot}, ""}}
}

func (v *view) is(conditions ...Condition) bool {
	for _, c := range conditions {
		if v.run.Condition == c {
			return true
		}
	}
	return false
}

func (v *view) runs() bool { return v.is(Healthy, Starting, Degraded) }

// age is how long the record has been in its state.
func (v *view) age() time.Duration { return v.in.Now.Sub(v.p.StateSince) }

// gate is what a promotion asks beyond health: that what runs is what the
// record wants, and that its compose file is there.
func (v *view) gate() bool {
	return v.run.Condition == Healthy && len(v.run.Outdated)+len(v.run.Leftovers) == 0 && v.dir.Compose == v.p.Desired
}

// spent reports whether repairs are used up.
func (v *view) spent() bool {
	return v.p.Repairs.Within(v.in.Now, v.in.Policy.RepairWindow) >= v.in.Policy.RepairTries
}
