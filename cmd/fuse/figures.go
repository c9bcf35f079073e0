package main

import (
	"context"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
)

// fleetNow reads the fleet for a scrape.
func (p *plane) fleetNow() metrics.Fleet {
	f := metrics.Fleet{
		VMs: map[metrics.StateHost]int{}, Snapshots: map[metrics.StateMode]int{}, DeadLetters: map[fleet.DeadLetterKind]int{},
		Paused: map[string]time.Time{},
	}
	if at := p.oldestEvent.Load(); at != nil {
		f.EventOldest = *at
	}
	if pauses, err := p.loop.Pauses(); err == nil {
		if pauses.All != nil {
			f.Paused[""] = pauses.All.At
		}
		for host, by := range pauses.Hosts {
			f.Paused[host] = by.At
		}
	}
	// The closure never fails, so neither does the view.
	_ = p.store.View(func(tx *state.ReadTx) error {
		f.EventSeq = tx.Seq()
		for vm := range tx.VMs().All() {
			f.VMs[metrics.StateHost{State: vm.State, HostID: vm.HostID}]++
		}
		for s := range tx.Snapshots().All() {
			f.Snapshots[metrics.StateMode{State: s.State, Mode: s.Mode}]++
		}
		for d := range tx.DeadLetters().All() {
			f.DeadLetters[d.Kind]++
		}
		for h := range tx.Hosts().All() {
			seen := p.hosts.Sighting(h.ID)
			f.Hosts = append(f.Hosts, metrics.HostFigures{
				Host: h, LastSeen: seen.LastSeen, Looked: seen.Misses > 0 || !seen.LastSeen.IsZero(),
				Unreachable: seen.Unreachable, UnreachableSince: seen.MissedSince, Foreign: seen.Foreign, Fenced: seen.Fenced != "",
			})
		}
		return nil
	})
	return f
}

// createDone exports how a create went.
func (p *plane) createDone(took time.Duration, steps []fleet.StepTime, err error) {
	p.metrics.OperationCompleted("create", took, err)
	for _, st := range steps {
		p.metrics.CreatePhase(st.Step, st.Took)
	}
}

// cycleDone exports what a cycle of the loop did, and forgets the activity of
// lives that are over.
func (p *plane) cycleDone(s reconcile.Summary) {
	_ = p.store.View(func(tx *state.ReadTx) error {
		p.guests.Forget(func(uid string) bool {
			_, alive := tx.VMs().GetUID(uid)
			return alive
		})
		return nil
	})
	p.metrics.ReconcileCompleted(figuresOf(s))
	ctx, cancel := context.WithTimeout(context.Background(), oldestTime)
	defer cancel()
	if oldest, err := p.store.Events(ctx, state.EventQuery{Limit: 1}); err == nil && len(oldest) > 0 {
		p.oldestEvent.Store(&oldest[0].At)
	}
}

// oldestTime bounds the look for the oldest event, once a cycle.
const oldestTime = time.Second

func figuresOf(s reconcile.Summary) metrics.Summary {
	out := metrics.Summary{
		TrackedVMs: s.TrackedVMs, ProviderVMs: s.ProviderVMs, HostsUnseen: len(s.HostsUnseen), Unverified: s.Unverified,
		OrphansDestroyed: s.OrphansDestroyed, OrphansFailed: s.OrphansFailed, OrphansDeadLettered: s.OrphansDeadLettered,
		StuckTasksSuspected: s.StuckTasksSuspected, StuckTasksFailed: s.StuckTasksFailed,
		IdleVMsSuspected: s.IdleVMsSuspected, IdleVMsFailed: s.IdleVMsFailed,
		VMsMissingProvider: s.VMsMissingProvider, DestroysRetried: s.DestroysRetried, DestroysFailed: s.DestroysFailed,
		HealthChecked: s.HealthChecked, HealthFailing: s.HealthFailing,
		SnapshotsDeleted: s.SnapshotsDeleted, ArtifactsDeleted: s.ArtifactsDeleted, CollectsFailed: s.CollectsFailed,
		Withheld: s.Withheld, Waiting: s.Waiting, BudgetsSpent: s.BudgetsSpent, Dropped: s.Dropped, InFlight: s.InFlight,
		Skipped: len(s.Skipped), Aborted: s.Aborted != "", Duration: s.Duration,
	}
	results := map[fleet.ObservationQuality]string{
		fleet.Complete: metrics.LookComplete, fleet.Partial: metrics.LookPartial, fleet.Unseen: metrics.LookUnseen,
	}
	for _, h := range s.Hosts {
		out.Looks = append(out.Looks, metrics.HostLook{HostID: h.HostID, Result: results[h.Quality], Took: h.Took, Tracked: h.Tracked, Listed: h.Listed})
	}
	return out
}
