// Package figures hands what the parts of a control plane count to the exporter
// of metrics, and serves it to who may read it.
package figures

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/reconcile"
	"github.com/fusevm/fuse/internal/state"
)

// Plane is what a scrape reads, and what a cycle of the loop is counted in.
type Plane struct {
	Store   *state.Store
	Hosts   *hosts.Service
	Pauses  func() (fleet.Pauses, error)
	Metrics *metrics.Metrics

	oldest atomic.Pointer[time.Time] // event, as of the last cycle
}

// Fleet reads the fleet for a scrape.
func (p *Plane) Fleet() metrics.Fleet {
	f := metrics.Fleet{
		VMs: map[metrics.StateHost]int{}, Snapshots: map[metrics.StateMode]int{}, DeadLetters: map[fleet.DeadLetterKind]int{},
		Paused: map[string]time.Time{},
	}
	if at := p.oldest.Load(); at != nil {
		f.EventOldest = *at
	}
	if pauses, err := p.Pauses(); err == nil {
		if pauses.All != nil {
			f.Paused[""] = pauses.All.At
		}
		for host, by := range pauses.Hosts {
			f.Paused[host] = by.At
		}
	}
	// The closure never fails, so neither does the view.
	_ = p.Store.View(func(tx *state.ReadTx) error {
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
			seen := p.Hosts.Sighting(h.ID)
			f.Hosts = append(f.Hosts, metrics.HostFigures{
				Host: h, LastSeen: seen.LastSeen, Looked: seen.Misses > 0 || !seen.LastSeen.IsZero(),
				Unreachable: seen.Unreachable, UnreachableSince: seen.MissedSince, Foreign: seen.Foreign, Fenced: seen.Fenced != "",
				Strange: seen.Certificate != "", Returning: seen.Returning != "",
			})
		}
		return nil
	})
	return f
}

// Created exports how a create went.
func Created(m *metrics.Metrics) func(took time.Duration, steps []fleet.StepTime, err error) {
	return func(took time.Duration, steps []fleet.StepTime, err error) {
		m.OperationCompleted("create", took, err)
		for _, st := range steps {
			m.CreatePhase(st.Step, st.Took)
		}
	}
}

// Cycle exports what a cycle of the loop did.
func (p *Plane) Cycle(s reconcile.Summary) {
	p.Metrics.ReconcileCompleted(figuresOf(s))
	ctx, cancel := context.WithTimeout(context.Background(), oldestTime)
	defer cancel()
	if oldest, err := p.Store.Events(ctx, state.EventQuery{Limit: 1}); err == nil && len(oldest) > 0 {
		p.oldest.Store(&oldest[0].At)
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
