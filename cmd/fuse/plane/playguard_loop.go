package plane

import (
	"context"
	"time"

	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/playguard/sshx"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
)

// wirePlayguard makes the service of marquees and playgrounds, and its loop,
// which costs nothing while there are none.
func wirePlayguard(p *Plane, sealer records.Sealer) (err error) {
	policy, inst := model.DefaultPolicy(), records.Installation(p.Store.FleetID())
	hosts := &reach.Hosts{Pool: sshx.NewPool(sshx.Timeouts{}), Sealer: sealer, Installation: inst}
	worker := work.New(work.Config{
		Store: p.Store, Sealer: sealer, Installation: inst, Policy: policy, Logger: p.log, Lease: func() (time.Duration, error) { return leaseLeft(p) },
		Ended: func(kind model.OpKind, result string) { p.metrics.PlayguardOperated(string(kind), result) },
	})
	l := loop.New(loop.Config{
		Store: p.Store, Policy: policy, Logger: p.log, Drop: hosts.Drop, Figures: func(s loop.Summary) { p.metrics.PlayguardPassed(passFigures(s)) },
		Host:   func(m records.Marquee) work.Host { return hosts.Host(m) },
		Worker: worker,
	})
	wireSources(p, l, worker, hosts, sealer)
	wireOrphans(p, l, hosts, sealer)
	p.metrics.WatchPlayguard(func() metrics.Playguard { return playguardFigures(p, hosts.Pool) })
	p.runPlayguard = func(ctx context.Context) error {
		defer hosts.Pool.Close()
		return l.Run(ctx)
	}
	p.playguard, err = service.New(service.Config{
		Store: p.Store, Sealer: sealer, Loop: l, Hosts: hosts, Installation: inst, Policy: policy, Logger: p.log, Leads: p.leads,
	})
	if err != nil {
		return err
	}
	return wireEnds(p, l, hosts, sealer)
}

// lastingLease stands for a lease that ends only when it is given up.
const lastingLease = time.Hour

// leaseLeft is for how long this process may act as the owner of the fleet.
func leaseLeft(p *Plane) (time.Duration, error) {
	if err := p.leads(); err != nil {
		return 0, err
	}
	left, lasting := p.Store.LeaseLeft()
	if lasting {
		return lastingLease, nil
	}
	return left, nil
}

// passFigures is a pass as it is counted.
func passFigures(s loop.Summary) metrics.PlayguardPass {
	out := metrics.PlayguardPass{Verdict: s.Verdict, Reason: s.Reason, Took: s.Took, Acts: s.Acts, Refusals: map[string]int{}, Moved: s.Moved}
	for guard, n := range s.Refusals {
		out.Refusals[string(guard)] = n
	}
	return out
}

// playguardFigures is what there is at the moment of a scrape.
func playguardFigures(p *Plane, pool *sshx.Pool) metrics.Playguard {
	out := metrics.Playguard{Marquees: map[string]int{}, Playgrounds: map[string]int{}, Connections: map[string]int{}, Sweep: map[string]int{}}
	out.Connections["live"], out.Connections["draining"] = pool.Open()
	// The closure never fails, so neither does the view.
	_ = p.Store.View(func(tx *state.ReadTx) error {
		for _, m := range records.Marquees.All(tx) {
			sweepFigures(out.Sweep, m)
			if m.Admin != model.AdminActive {
				out.Marquees[string(m.Admin)]++
				continue
			}
			out.Marquees[string(m.Reach)]++
		}
		for _, g := range records.Playgrounds.All(tx) {
			out.Playgrounds[string(g.State)]++
		}
		return nil
	})
	return out
}
