package plane

import (
	"fmt"

	"github.com/fusevm/fuse/cmd/fuse/figures"
	"github.com/fusevm/fuse/internal/api/reconcile"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/fleet"
	decide "github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
)

func (p *Plane) reconcileRoutes() []web.Route { return reconcile.Routes(p.loop, p.keeper) }

// pausedNote says in the readiness that destruction is stopped; "" if not.
func (p *Plane) pausedNote() string {
	now, err := p.loop.Pauses()
	switch {
	case err != nil || !now.Any():
		return ""
	case now.All != nil:
		return "ok; reconcile is PAUSED on every host"
	}
	return fmt.Sprintf("ok; reconcile is PAUSED on %d hosts", len(now.Hosts))
}

// wireLoop makes the converge loop.
func (p *Plane) wireLoop() (err error) {
	p.figures = &figures.Plane{Store: p.Store, Hosts: p.Hosts, Metrics: p.metrics, Pauses: func() (fleet.Pauses, error) { return p.loop.Pauses() }}
	p.loop, err = converge.New(converge.Config{
		Store: p.Store, Looker: p.Hosts, Destroyer: p.life, OrphanKiller: orphans{p.Hosts}, Reattacher: p.back, Logger: p.log,
		Interval: p.settings.ReconcileInterval, Events: p.Store, EventRetention: p.settings.Events.Retention, EventKeep: p.settings.Events.Keep, Limits: reconcileLimits(p.settings.Reconcile),
		DeadLetterRetention: p.settings.DeadLetters.Retention, DeadLetterKeep: p.settings.DeadLetters.Keep,
		Use: func(uid string) converge.Use {
			a, _ := p.guests.Activity(uid)
			return converge.Use{Last: a.Last, Open: a.Open}
		},
		Shut:   p.guests.Shut,
		Pauser: p.pausing, Collector: p.snapshots, Held: p.snapshots.Held,
		Metrics: p.cycleDone, Tracer: p.tracer,
	})
	return err
}

// reconcileLimits turns "0 is off" of the settings into what the passes take,
// where zero means the default.
func reconcileLimits(r config.Reconcile) decide.Limits {
	const off = -1
	count := func(n int) int {
		if n == 0 {
			return off
		}
		return n
	}
	l := decide.Limits{
		StuckAfter: r.MaxRuntime, IdleAfter: r.IdleTimeout,
		OrphanTries: count(r.OrphanTries), PerCycle: count(r.MaxDestroyPerCycle), PerHour: count(r.MaxDestroyPerHour),
		SnapshotRetention: r.SnapshotRetention, ArtifactIdle: r.ArtifactIdleTTL, ArtifactMax: r.ArtifactMaxPerTenant,
	}
	if r.MaxRuntime == 0 {
		l.StuckAfter = off
	}
	return l
}

// cycleDone exports what a cycle of the loop did, and forgets the activity of
// lives that are over.
func (p *Plane) cycleDone(s decide.Summary) {
	_ = p.Store.View(func(tx *state.ReadTx) error {
		p.guests.Forget(func(uid string) bool {
			_, alive := tx.VMs().GetUID(uid)
			return alive
		})
		return nil
	})
	p.figures.Cycle(s)
}
