package decide

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"path"
	"slices"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// Rules about the marquee, and those that come before any state is asked.
const (
	RuleLook      Rule = "marquee.look"
	RuleReturn    Rule = "marquee.return"
	RuleEpoch     Rule = "marquee.epoch"
	RuleDisabled  Rule = "marquee.disabled"
	RuleBlind     Rule = "truth.blind" // a failed look changes nothing
	RuleNewer     Rule = "truth.newer" // the record wins over an older look
	RuleOp        Rule = "op.attach"
	RuleOwnership Rule = "ownership"
	RuleOrphan    Rule = "orphan"
	RuleSight     Rule = "note.sight"
	RuleCalm      Rule = "note.calm"
	RuleFlag      Rule = "note.flag"
)

// Decide says what to do about each playground of a marquee after one look at
// it: first what concerns the marquee, then at least one step for each row in
// an order that follows from the seed, then the orphans. At most one step for
// each playground sets work in motion.
func Decide(in Input) []Step {
	steps, hold := marquee(in)
	rows := slices.Clone(in.Playgrounds)
	slices.SortFunc(rows, func(a, b model.Playground) int {
		return cmp.Or(cmp.Compare(shuffle(in.Seed, a.ID), shuffle(in.Seed, b.ID)), cmp.Compare(a.ID, b.ID))
	})
	if hold != nil {
		for _, p := range rows {
			s := *hold
			s.Playground = p.ID
			steps = append(steps, s)
		}
		return steps
	}
	host, _ := in.Look.Host()
	p := &pass{in: in, host: host, left: budget(in), reclaims: reclaims(in)}
	for _, row := range rows {
		for _, s := range p.playground(row) {
			if s.cost() != CostNone {
				p.left--
			}
			if s.takes() {
				p.reclaims--
			}
			steps = append(steps, s)
		}
	}
	return append(steps, orphans(in)...)
}

// pass is what the decisions of one pass share.
type pass struct {
	in   Input
	host observe.Host
	left int // rollouts that may still begin

	reclaims int // playgrounds that may still be taken away
}

// budget is the bound on rollouts of one pass and, as whatever is still at
// work counts, also on those at work at the same time.
func budget(in Input) int {
	left := in.Policy.RolloutsPerPass
	for _, p := range in.Playgrounds {
		if in.Jobs[p.ID] == JobAlive || p.Op.Kind == model.OpUp {
			left--
		}
	}
	return left
}

func shuffle(seed uint64, id model.PlaygroundID) uint64 {
	h := fnv.New64a()
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], seed)
	_, _ = h.Write(b[:]) // a hash takes everything
	_, _ = h.Write([]byte(id))
	return h.Sum64()
}

// marquee decides about the host as a whole. If it returns a step to hold, that
// is all there is for every playground.
func marquee(in Input) (steps []Step, hold *Step) {
	refuse := func(rule Rule, g Guard, why string) *Step { return &Step{Rule: rule, Act: Refuse{g}, Why: why} }
	m, look := in.Marquee, in.Look
	if m.Admin != model.AdminActive {
		return nil, refuse(RuleDisabled, GuardDisabled, "")
	}
	if look.Verdict() != observe.Seen {
		guard := GuardUnseen
		if look.Verdict() == observe.Partial {
			guard = GuardPartial
		}
		why := string(look.Reason())
		if look.Detail() != "" {
			why += ": " + look.Detail()
		}
		return missed(in, why), refuse(RuleBlind, guard, why)
	}
	if m.Streak.Count > 0 || m.Trouble != "" {
		steps = append(steps, Step{Rule: RuleLook, Act: Clean{}})
	}
	if m.Reach == model.ReachQuarantined {
		steps = append(steps, Step{Rule: RuleReturn, Act: Return{}, Why: "one clean look"})
		return steps, refuse(RuleReturn, GuardQuarantined, "this look returns the marquee; the next pass acts")
	}
	if host, _ := look.Host(); host.Epoch > in.Epoch {
		why := fmt.Sprintf("the host has seen epoch %d, this pass holds %d", host.Epoch, in.Epoch)
		steps = append(steps, Step{Rule: RuleEpoch, Act: Alarm{"a newer holder, or records older than the host"}, Why: why})
		return steps, refuse(RuleEpoch, GuardSuperseded, why)
	}
	return steps, nil
}

// missed counts a look that saw nothing.
func missed(in Input, why string) []Step {
	m, reason := in.Marquee, in.Look.Reason()
	streak := m.Streak.Miss(in.Now, in.Policy.MissMemory)
	steps := []Step{{Rule: RuleLook, Act: Miss{streak, reason}, Why: why}}
	if reason.NeedsPerson() && m.Trouble != string(reason) {
		steps = append(steps, Step{Rule: RuleLook, Act: Alarm{string(reason)}, Why: why})
	}
	if m.Reach != model.ReachQuarantined && streak.Count >= in.Policy.MissesToQuarantine {
		steps = append(steps, Step{Rule: RuleLook, Act: Quarantine{}, Why: fmt.Sprintf("%d looks in a row saw nothing", streak.Count)})
	}
	return steps
}

// orphans reports what is provably ours and has no row. It never removes
// anything. Rows must have been read after the host was listed, so that one
// made in between is not taken for missing.
func orphans(in Input) []Step {
	if in.Heard > in.Rows || in.Sent > in.Heard {
		return []Step{{Rule: RuleOrphan, Act: Refuse{GuardRows}, Why: "rows must be read after the answer came"}}
	}
	known := map[model.Project]bool{}
	for _, p := range in.Playgrounds {
		known[p.Project] = true
	}
	var steps []Step
	projects, _ := in.Look.Projects()
	for _, project := range projects {
		if !known[project] {
			if s, ours := orphan(in, project); ours {
				steps = append(steps, s)
			}
		}
	}
	return steps
}

func orphan(in Input, project model.Project) (Step, bool) {
	l := in.Look.Project(project)
	s := Step{Rule: RuleOrphan, Why: project.String()}
	dir, seen := l.Directory()
	containers, _ := l.Containers()
	volumes, _ := l.Volumes()
	switch {
	case !seen:
		s.Act = Refuse{GuardPartial}
	case dir.HasMarker && dir.Marker.Installation != in.Marquee.Identity.Installation:
		return Step{}, false // of another installation: none of our business
	case dir.Exists && !owned(in.Marquee, dir, project, dir.Marker.Playground):
		s.Act = Refuse{GuardForeign}
	case !dir.Exists && len(containers)+len(volumes) == 0:
		return Step{}, false
	case dir.Marker.Epoch > in.Epoch:
		s.Act = Refuse{GuardRolledBack}
		s.Why += fmt.Sprintf(": its marker is of epoch %d, this pass holds %d", dir.Marker.Epoch, in.Epoch)
	default:
		s.Act = Report{project}
		s.Why += fmt.Sprintf(": no row, %d containers, %d volumes", len(containers), len(volumes))
	}
	return s, true
}

// owned reports whether a directory is proven to be the playground's: its
// resolved path lies below our root under the project's name, and its marker
// says so.
func owned(m model.Marquee, dir observe.Directory, project model.Project, id model.PlaygroundID) bool {
	root, err := model.NewLayout(m.Root)
	return err == nil && root.Contains(dir.Path) && path.Base(dir.Path) == project.String() &&
		dir.Marker.Owns(m.Identity.Installation, id, project)
}
