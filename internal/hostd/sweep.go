package hostd

import (
	"context"
	"time"

	"github.com/fusevm/fuse/internal/hostd/driver"
)

// sweepTimeout bounds one sweep; new creates wait for it.
const sweepTimeout = 30 * time.Second

// watchExits makes the end of a VM durable soon after it happened. It looks
// at all running VMs together, so an idle VM costs no goroutine.
func (h *keeper) watchExits(ctx context.Context) {
	tick := time.NewTicker(h.cfg.ExitEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			h.settleExits()
		case <-ctx.Done():
			return
		}
	}
}

// settleExits records who has stopped; it returns once the records are
// durable.
func (h *keeper) settleExits() {
	for _, s := range h.reg.noteExits() {
		h.log.Warn("vm stopped", "vm_id", s.exit.VMID, "uid", s.exit.UID, "cause", s.exit.Cause)
		if err := s.record.Wait(); err != nil {
			h.log.Error("exit record not logged", "vm_id", s.exit.VMID, "uid", s.exit.UID, "error", err)
		}
		if err := s.inst.Close(); err != nil {
			h.log.Warn("stopped vm not let go", "vm_id", s.exit.VMID, "uid", s.exit.UID, "error", err)
		}
	}
}

// sweepLoop compares host and registry at the start and on the timer, and
// tries again what did not work out before.
func (h *keeper) sweepLoop(ctx context.Context) {
	tick := time.NewTicker(h.cfg.SweepEvery)
	defer tick.Stop()
	for {
		h.sweep(ctx)
		h.reg.mu.Lock()
		h.reg.ended.Forget(time.Now()) // the log follows at its next rewrite
		h.reg.mu.Unlock()
		h.snaps.Retry(ctx)
		h.consoles.Prune(time.Now())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, l := range h.reg.list(func(l *life) bool { return l.phase == phaseUnadopted || l.phase == phaseCondemned }) {
			h.adoptOne(ctx, l)
		}
	}
}

// sweep lets the driver remove what is provably left over. Creates wait
// meanwhile, since a VM that is not on the list would count as ended.
func (h *keeper) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	live := h.reg.beginSweep()
	defer h.reg.endSweep()
	report, err := h.drv.Sweep(ctx, live)
	if snapper, ok := h.drv.(driver.Snapshotter); ok && err == nil {
		var more driver.SweepReport
		more, err = snapper.SweepSnapshots(ctx, append(h.snaps.Artifacts(), h.golden.Artifacts()...))
		report.Removed, report.Reported = append(report.Removed, more.Removed...), append(report.Reported, more.Reported...)
	}
	if err != nil {
		if ctx.Err() == nil {
			h.log.Error("host not swept", "error", err)
		}
		return
	}
	for _, o := range report.Removed {
		h.log.Info("leftover removed", "kind", o.Kind, "name", o.Name, "why", o.Why)
		h.metrics.Removed(o.Kind)
	}
	var unknown []string
	for _, o := range report.Reported {
		h.log.Warn("unknown object left alone", "kind", o.Kind, "name", o.Name, "why", o.Why)
		unknown = append(unknown, o.Kind)
	}
	h.metrics.Found(unknown)
}
