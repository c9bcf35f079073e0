package reconcile

import (
	"cmp"
	"fmt"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// idle finds environments that run and that nobody has used for their idle
// timeout, or the fleet's, which is unset by default. What is open counts as
// use however quiet it is; what happens inside is not observed. It takes two
// cycles in a row; the first says so. One that asked for it is paused instead of
// ended; what stands still is left alone.
func (p *plan) idle() {
	if p.fault != "" {
		p.skip("idle")
		return
	}
	for _, v := range p.views {
		for _, vm := range v.rows {
			life := p.in.Lives[vm.UID]
			timeout := cmp.Or(vm.Spec.IdleTimeout, max(0, p.in.Limits.IdleAfter))
			if timeout == 0 || life.Open > 0 || life.Paused || !v.runs(vm) {
				continue
			}
			// The window of a life that nobody used begins when it came to run.
			quiet := min(life.Quiet, p.in.age(latest(vm.CreatedAt, vm.UpdatedAt)))
			if quiet < timeout {
				continue
			}
			step := of(KindIdle, vm)
			if vm.Spec.OnIdle == fleet.IdlePause {
				step.Kind = KindIdlePause
			}
			step.Rule, step.Limit = fleet.RuleIdleTimeout, timeout
			step.Evidence = fmt.Sprintf("nobody has used it for %s; its idle timeout is %s", quiet.Round(time.Second), whose(timeout, vm.Spec.IdleTimeout, "idle_timeout"))
			p.twice(v, step, twice{before: p.in.Memory.Idle, next: p.next.Idle, suspect: KindIdleSuspected, life: life})
		}
	}
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
