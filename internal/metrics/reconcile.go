package metrics

import "github.com/prometheus/client_golang/prometheus"

// reconcileMetrics are the figures of the converge loop, under the names of
// the seed.
type reconcileMetrics struct {
	cycles   prometheus.Counter
	duration prometheus.Observer

	tracked, provider, unseen      prometheus.Gauge
	healthChecked, healthFailing   prometheus.Gauge
	orphansDestroyed               prometheus.Counter
	orphansFailed, orphansDead     prometheus.Counter
	stuckSuspected, stuckFailed    prometheus.Counter
	idleSuspected, idleFailed      prometheus.Counter
	missingProvider, destroysAgain prometheus.Counter
}

func newReconcileMetrics(m *Metrics) reconcileMetrics {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{
		Namespace: namespace, Name: "reconcile_duration_seconds", Help: "Time of a cycle.", Buckets: prometheus.DefBuckets,
	})
	m.registry.MustRegister(h)
	return reconcileMetrics{
		cycles:           m.counter("reconcile_cycles_total", "Cycles ended."),
		duration:         h,
		tracked:          m.gauge("fleet_tracked_vms", "Environments that Fuse believes exist."),
		provider:         m.gauge("fleet_provider_vms", "Machines of ours that hosts report, as of the last cycle that saw every host."),
		unseen:           m.gauge("reconcile_hosts_unseen", "Hosts that the last cycle could not see in full."),
		healthChecked:    m.gauge("reconcile_health_checked_vms", "Environments whose health verdict was read in the last cycle."),
		healthFailing:    m.gauge("reconcile_health_failing_vms", "Environments whose last verdict is failing."),
		orphansDestroyed: m.counter("reconcile_orphans_destroyed_total", "Untracked machines of ours that were destroyed."),
		orphansFailed:    m.counter("reconcile_orphans_failed_total", "Attempts to destroy one that went wrong."),
		orphansDead:      m.counter("reconcile_orphans_dead_lettered_total", "Orphans given up."),
		stuckSuspected:   m.counter("reconcile_stuck_tasks_suspected_total", "First strikes against tasks over their time."),
		stuckFailed:      m.counter("reconcile_stuck_tasks_failed_total", "Tasks failed for being over their time."),
		idleSuspected:    m.counter("reconcile_idle_vms_suspected_total", "First strikes against idle environments."),
		idleFailed:       m.counter("reconcile_idle_vms_failed_total", "Environments ended for being idle."),
		missingProvider:  m.counter("reconcile_vms_missing_provider_total", "Environments that their host no longer had."),
		destroysAgain:    m.counter("reconcile_destroys_retried_total", "Unfinished destroys tried again."),
	}
}

// ReconcileCompleted takes the figures of one cycle, whatever became of it.
func (m *Metrics) ReconcileCompleted(s Summary) {
	r := &m.reconcile
	r.cycles.Inc()
	r.duration.Observe(s.Duration.Seconds())
	r.tracked.Set(float64(s.TrackedVMs))
	r.unseen.Set(float64(s.HostsUnseen))
	if s.HostsUnseen == 0 {
		r.provider.Set(float64(s.ProviderVMs))
	}
	r.healthChecked.Set(float64(s.HealthChecked))
	r.healthFailing.Set(float64(s.HealthFailing))
	r.orphansDestroyed.Add(float64(s.OrphansDestroyed))
	r.orphansFailed.Add(float64(s.OrphansFailed))
	r.orphansDead.Add(float64(s.OrphansDeadLettered))
	r.stuckSuspected.Add(float64(s.StuckTasksSuspected))
	r.stuckFailed.Add(float64(s.StuckTasksFailed))
	r.idleSuspected.Add(float64(s.IdleVMsSuspected))
	r.idleFailed.Add(float64(s.IdleVMsFailed))
	r.missingProvider.Add(float64(s.VMsMissingProvider))
	r.destroysAgain.Add(float64(s.DestroysRetried))
}
