package reconcile

import (
	"cmp"
	"fmt"

	"github.com/fusevm/fuse/internal/fleet"
)

// health takes in the verdicts that a listing brought, of environments that
// declared a probe. It reports and does nothing else: no strike, no step but
// the news. A guest that could not be read, or has not written a verdict yet,
// keeps the last one.
func (p *plan) health() {
	for _, v := range p.views {
		for _, vm := range v.rows {
			if !vm.Probed {
				continue
			}
			key := VMKey{v.host, vm.UID}
			last, known := p.in.Memory.Health[key]
			if known {
				p.next.Health[key] = last
			}
			now := v.listed[vm.UID].Health
			if now == nil || !v.runs(vm) || p.in.Lives[vm.UID].Paused {
				continue
			}
			p.sum.HealthChecked++
			if now.State == fleet.HealthFailing {
				p.sum.HealthFailing++
			}
			p.next.Health[key] = *now
			if now.State == last.State {
				continue
			}
			step := of(KindHealth, vm)
			step.Rule, step.Was, step.Is = fleet.RuleHealthcheck, last.State, now.State
			step.Evidence = fmt.Sprintf("its verdict is %s, was %s (look %s)", now.State, cmp.Or(last.State, "unknown"), v.obs.ID)
			if now.Message != "" {
				step.Evidence += ": " + now.Message
			}
			p.add(v, step)
		}
	}
}
