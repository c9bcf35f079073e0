package reconcile

import (
	"cmp"
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// stuck finds environments that run, have a task, and are older than their
// ceiling: max_runtime, or the fleet's. Age counts from the creation, whatever
// the work does. It takes two cycles in a row; the first says so.
func (p *plan) stuck() {
	if p.fault != "" {
		p.skip("stuck")
		return
	}
	for _, v := range p.views {
		for _, vm := range v.rows {
			life := p.in.Lives[vm.UID]
			ceiling := cmp.Or(vm.Spec.MaxRuntime, max(0, p.in.Limits.StuckAfter))
			if ceiling == 0 || vm.CreatedAt.IsZero() || !life.Tasked || life.Paused || !v.runs(vm) {
				continue
			}
			age := p.in.age(vm.CreatedAt)
			if age < ceiling {
				continue
			}
			step := of(KindStuck, vm)
			step.Rule, step.Limit = fleet.RuleStuckTask, ceiling
			step.Evidence = fmt.Sprintf("its age of %s is over the ceiling of %s", age.Round(time.Second), whose(ceiling, vm.Spec.MaxRuntime, "max_runtime"))
			p.twice(v, step, twice{before: p.in.Memory.Stuck, next: p.next.Stuck, suspect: KindStuckSuspected, life: life})
		}
	}
}

// runs says whether a look shows what a row says: running, at its host.
func (v view) runs(vm *fleet.VM) bool {
	return vm.State == fleet.VMStateRunning && v.judged(vm) && v.listed[vm.UID].Running
}

func whose(limit, own time.Duration, name string) string {
	if own > 0 {
		return fmt.Sprintf("%s (its %s)", limit, name)
	}
	return fmt.Sprintf("%s (the fleet's)", limit)
}

// twice is a condition that has to hold on two cycles in a row.
type twice struct {
	before, next map[VMKey]Strike
	suspect      Kind
	life         Life
}

// twice counts a strike for s. The first is only told; from the second on s is
// planned, if nothing holds the environment and nothing stopped the passes.
// Either leaves one strike, so that what waited is seen once more afterwards.
func (p *plan) twice(v view, s Step, t twice) {
	key := VMKey{v.host, s.UID}
	s.HostID = v.host
	strike := t.before[key]
	if strike.Count == 0 {
		strike.FirstLook = v.obs.ID
	}
	strike.Count++
	if s.Count = strike.Count; strike.Count < strikesNeeded {
		s.Kind = t.suspect
		s.Evidence += fmt.Sprintf("; look %s", v.obs.ID)
		p.add(v, s)
		t.next[key] = strike
		return
	}
	s.Evidence += fmt.Sprintf(", %d cycles in a row (looks %s to %s)", strike.Count, strike.FirstLook, v.obs.ID)
	if t.life.Held != "" {
		p.sum.Held++
		p.withheld = append(p.withheld, Withheld{s, "held: " + t.life.Held})
		strike.Count = 1
	} else if !s.Destroys() {
		if !p.in.Busy[s.UID] {
			p.add(v, s)
		}
	} else if p.end(v, s) == paused {
		strike.Count = 1
	}
	t.next[key] = strike
}
