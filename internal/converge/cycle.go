package converge

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/tracing"
)

// cycle is one round: look at the hosts for at most the budget, plan on each
// answer, start the steps, wait a while for them, and report. It reports also
// when it has to stop early.
func (l *Loop) cycle(ctx context.Context, budget time.Duration) {
	began := time.Now()
	ctx, span := l.cfg.Tracer.Begin(ctx, "reconcile cycle")
	sum, steps := reconcile.Summary{}, newBatch(span)
	err := l.round(ctx, budget, steps, &sum)
	steps.add(-1)
	if err != nil {
		sum.Aborted = err.Error()
		_ = l.lost(err)
	} else {
		l.once.Do(func() { close(l.up) })
		l.await(ctx, steps)
	}
	sum.Add(l.acts.take())
	l.count(&sum)
	sum.Duration = time.Since(began)
	l.report(sum)
	span.SetInt(tracing.Count, sum.TrackedVMs)
	span.End(err)
}

func (l *Loop) round(ctx context.Context, budget time.Duration, steps *batch, sum *reconcile.Summary) error {
	if err := l.cfg.Store.Ready(ctx); err != nil {
		return err
	}
	var hosts []*fleet.Host
	var at time.Time
	if err := l.cfg.Store.View(func(tx *state.ReadTx) error {
		hosts, at = collect(tx.Hosts().All()), tx.At()
		return nil
	}); err != nil {
		return err
	}
	l.forgetHosts(hosts)
	l.now, l.lap = l.clock.lap(at)
	l.memory = l.memory.Lapped(l.now, l.lap).Untold(l.acts.takeUntold())
	var failed error
	for a := range l.lookAll(ctx, hosts, budget, l.sights) {
		if failed != nil {
			continue // the looks still have to be waited for
		}
		failed = l.heard(ctx, a, steps, sum)
	}
	if failed == nil && ctx.Err() != nil {
		failed = context.Cause(ctx)
	}
	if failed != nil {
		return failed
	}
	return l.wholeFleet(ctx, steps, sum)
}

func (l *Loop) forgetHosts(hosts []*fleet.Host) {
	registered := map[string]bool{}
	for _, h := range hosts {
		registered[h.ID] = true
	}
	l.memory = l.memory.Keep(func(host string) bool { return registered[host] })
	maps.DeleteFunc(l.sights, func(host string, _ sight) bool { return !registered[host] })
}

// heard plans on one host's answer and starts the steps.
func (l *Loop) heard(ctx context.Context, a answer, steps *batch, sum *reconcile.Summary) error {
	if obs := a.obs; obs.Quality() != fleet.Complete {
		l.log.Debug("host not seen completely", slog.String("host_id", a.host), slog.String("quality", obs.Quality().String()), slog.String("reason", obs.Reason()))
	}
	in := l.input()
	registered := false
	if err := l.cfg.Store.View(func(tx *state.ReadTx) error {
		registered = l.hostInput(tx, a, &in)
		return nil
	}); err != nil {
		return err
	}
	if !registered {
		return nil // removed meanwhile
	}
	before := l.sights[a.host]
	l.sights[a.host] = before.after(a)
	if l.sights[a.host].complete && !before.complete {
		if err := l.reattach(ctx, in.VMs, a.obs); err != nil {
			return err
		}
	}
	_, span := tracing.Start(ctx, "plan")
	span.Set(tracing.HostID, a.host)
	l.plan(in, steps, sum)
	span.End(nil)
	return nil
}

// wholeFleet plans what belongs to no host.
func (l *Loop) wholeFleet(ctx context.Context, steps *batch, sum *reconcile.Summary) error {
	in := l.input()
	oldest, err := l.oldestEvent(ctx)
	if err != nil {
		return err
	}
	if err := l.cfg.Store.View(func(tx *state.ReadTx) error {
		l.fleetInput(tx, oldest, &in)
		return nil
	}); err != nil {
		return err
	}
	_, span := tracing.Start(ctx, "plan")
	l.plan(in, steps, sum)
	span.End(nil)
	return nil
}

func (l *Loop) input() reconcile.Input {
	return reconcile.Input{
		Now: l.now, Clock: l.lap, FleetID: l.cfg.Store.FleetID(), Busy: l.acts.busy(), Limits: l.cfg.Limits, Memory: l.memory,
	}
}

func (l *Loop) plan(in reconcile.Input, steps *batch, sum *reconcile.Summary) {
	r := reconcile.Plan(in)
	l.memory = r.Memory
	l.shared.Store(&r.Memory)
	sum.Add(r.Summary)
	for _, s := range r.Steps {
		l.log.Info("step planned", slog.String("step", string(s.Kind)), slog.String("vm_id", s.VMID), slog.String("uid", s.UID),
			slog.String("host_id", s.HostID), slog.String("evidence", s.Evidence))
	}
	l.acts.dispatch(steps, r.Steps)
}

// await waits for the cycle's steps, at most for one host deadline: what takes
// longer is reported by a later cycle and keeps no tick.
func (l *Loop) await(ctx context.Context, steps *batch) {
	timer := time.NewTimer(l.cfg.HostDeadline)
	defer timer.Stop()
	select {
	case <-steps.ended:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// count fills in what is true of the fleet now, whatever came of the cycle.
func (l *Loop) count(sum *reconcile.Summary) {
	slices.SortFunc(sum.Hosts, func(a, b reconcile.HostResult) int { return cmp.Compare(a.HostID, b.HostID) })
	sum.ProviderVMs = 0
	for _, n := range l.memory.Listed {
		sum.ProviderVMs += n
	}
	slices.Sort(sum.HostsUnseen)
	if err := l.cfg.Store.View(func(tx *state.ReadTx) error {
		sum.TrackedVMs = tx.VMs().Len()
		for vm := range tx.VMs().ByState(fleet.VMStateRunning) {
			if !l.sights[vm.HostID].complete {
				sum.Unverified++
			}
		}
		return nil
	}); err != nil {
		if last, ok := l.Last(); ok {
			sum.TrackedVMs, sum.Unverified = last.TrackedVMs, last.Unverified
		}
	}
}

func (l *Loop) report(sum reconcile.Summary) {
	l.last.Store(&cycled{sum, time.Now()})
	if l.cfg.Metrics != nil {
		l.cfg.Metrics(sum)
	}
	switch {
	case sum.Aborted != "":
		l.log.Warn("cycle aborted", slog.String("reason", sum.Aborted), slog.Duration("took", sum.Duration))
	case len(sum.Skipped) > 0:
		l.log.Warn("passes left out", slog.Any("skipped", sum.Skipped))
	}
	l.log.Debug("cycle ended", slog.Int("tracked", sum.TrackedVMs), slog.Int("listed", sum.ProviderVMs),
		slog.Int("withheld", sum.Withheld), slog.Any("hosts_unseen", sum.HostsUnseen), slog.Int("in_flight", sum.InFlight), slog.Duration("took", sum.Duration))
}
