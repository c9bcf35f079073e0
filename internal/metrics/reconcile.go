package metrics

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Looks at hosts, by what may be concluded from them.
const (
	LookComplete = "complete"
	LookPartial  = "partial"
	LookUnseen   = "unseen"
)

// HostLook is one look of a cycle at one host.
type HostLook struct {
	HostID string
	Result string // LookComplete, LookPartial or LookUnseen
	Took   time.Duration
	// Tracked environments are recorded on the host, Listed ones are what it
	// reports; Listed counts only with LookComplete.
	Tracked, Listed int
}

// Summary is one reconcile cycle in figures (seed: ReconcileSummary). A host
// that was not seen counts in ProviderVMs with what it last listed.
type Summary struct {
	TrackedVMs          int
	ProviderVMs         int
	HostsUnseen         int
	Unverified          int
	OrphansDestroyed    int
	OrphansFailed       int
	OrphansDeadLettered int
	StuckTasksSuspected int
	StuckTasksFailed    int
	IdleVMsSuspected    int
	IdleVMsFailed       int
	VMsMissingProvider  int
	DestroysRetried     int
	DestroysFailed      int
	HealthChecked       int
	HealthFailing       int
	SnapshotsDeleted    int
	ArtifactsDeleted    int
	CollectsFailed      int
	Withheld            int // by a pause
	Waiting             int // for a budget
	BudgetsSpent        int
	Dropped             int
	InFlight            int
	Skipped             int
	Aborted             bool
	Looks               []HostLook
	Duration            time.Duration
}

// reconcileMetrics are the figures of the converge loop, under the names of
// the seed where it has them.
type reconcileMetrics struct {
	cycles, aborted, skipped prometheus.Counter
	duration, lookDuration   prometheus.Observer
	ended                    prometheus.Gauge

	tracked, provider, unseen, unverified      prometheus.Gauge
	healthChecked, healthFailing               prometheus.Gauge
	orphansDestroyed                           prometheus.Counter
	orphansFailed, orphansDead                 prometheus.Counter
	stuckSuspected, stuckFailed                prometheus.Counter
	idleSuspected, idleFailed                  prometheus.Counter
	missingProvider                            prometheus.Counter
	destroysAgain, destroysFailed, dropped     prometheus.Counter
	snapshotsDeleted, artifactsDeleted, failed prometheus.Counter
	withheld, waiting, inFlight                prometheus.Gauge
	budgets                                    prometheus.Counter

	looks                                         *prometheus.CounterVec
	hostTracked, hostListed, hostSeen, hostLookAt *prometheus.GaugeVec

	mu    sync.Mutex
	hosts map[string]bool // of the last cycle; guarded by mu
}

func newReconcileMetrics(m *Metrics) reconcileMetrics {
	return reconcileMetrics{
		cycles:   m.counter("reconcile_cycles_total", "Cycles ended."),
		aborted:  m.counter("reconcile_cycles_aborted_total", "Cycles that ended early, because the store could not be used."),
		skipped:  m.counter("reconcile_passes_skipped_total", "Passes left out, because the clock could not be trusted."),
		duration: m.histogram("reconcile_duration_seconds", "Time of a cycle.", prometheus.DefBuckets),
		ended:    m.gauge("reconcile_last_cycle_timestamp_seconds", "When the last cycle ended."),

		tracked:          m.gauge("fleet_tracked_vms", "Environments that Fuse believes exist."),
		provider:         m.gauge("fleet_provider_vms", "Machines of ours that hosts report; a host that was not seen counts with what it last listed."),
		unverified:       m.gauge("fleet_unverified_vms", "Running environments whose host has not been seen completely since this server leads."),
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
		destroysFailed:   m.counter("reconcile_destroys_failed_total", "Attempts of any pass that did not confirm the end."),
		dropped:          m.counter("reconcile_steps_dropped_total", "Steps that no longer held when their turn came."),
		snapshotsDeleted: m.counter("reconcile_snapshots_deleted_total", "Snapshots deleted after their retention."),
		artifactsDeleted: m.counter("reconcile_artifacts_deleted_total", "Layer artifacts deleted after their time unused."),
		failed:           m.counter("reconcile_collects_failed_total", "Deletions of snapshots and artifacts that went wrong."),
		withheld:         m.gauge("reconcile_withheld_steps", "Destructions that a pause put off in the last cycle."),
		waiting:          m.gauge("reconcile_waiting_steps", "Destructions that waited for a budget in the last cycle."),
		inFlight:         m.gauge("reconcile_steps_in_flight", "Steps at work when the last cycle ended."),
		budgets:          m.counter("reconcile_budgets_exhausted_total", "Destruction budgets that were exhausted."),

		looks:        m.counterVec("host_looks_total", "Looks at a host by result: complete, partial or unseen.", "host", "result"),
		lookDuration: m.histogram("host_look_duration_seconds", "Time of a look at a host.", []float64{.005, .01, .05, .1, .5, 1, 2.5, 5, 10, 30}),
		hostTracked:  m.gaugeVec("host_tracked_vms", "Environments recorded on a host, as of the last cycle.", "host"),
		hostListed:   m.gaugeVec("host_listed_vms", "Machines of ours on a host, as of the last complete look.", "host"),
		hostSeen:     m.gaugeVec("host_seen_complete", "Whether the last look at a host was complete.", "host"),
		hostLookAt:   m.gaugeVec("host_look_timestamp_seconds", "When a host was last looked at, whatever came of it.", "host"),
		hosts:        map[string]bool{},
	}
}

// ReconcileCompleted takes the figures of one cycle, whatever became of it.
func (m *Metrics) ReconcileCompleted(s Summary) {
	r := &m.reconcile
	add := func(c prometheus.Counter, n int) { c.Add(float64(max(n, 0))) }
	set := func(g prometheus.Gauge, n int) { g.Set(float64(n)) }
	r.cycles.Inc()
	if s.Aborted {
		r.aborted.Inc()
	}
	r.duration.Observe(s.Duration.Seconds())
	r.ended.SetToCurrentTime()
	set(r.tracked, s.TrackedVMs)
	set(r.provider, s.ProviderVMs)
	set(r.unverified, s.Unverified)
	set(r.unseen, s.HostsUnseen)
	set(r.healthChecked, s.HealthChecked)
	set(r.healthFailing, s.HealthFailing)
	set(r.withheld, s.Withheld)
	set(r.waiting, s.Waiting)
	set(r.inFlight, s.InFlight)
	add(r.skipped, s.Skipped)
	add(r.orphansDestroyed, s.OrphansDestroyed)
	add(r.orphansFailed, s.OrphansFailed)
	add(r.orphansDead, s.OrphansDeadLettered)
	add(r.stuckSuspected, s.StuckTasksSuspected)
	add(r.stuckFailed, s.StuckTasksFailed)
	add(r.idleSuspected, s.IdleVMsSuspected)
	add(r.idleFailed, s.IdleVMsFailed)
	add(r.missingProvider, s.VMsMissingProvider)
	add(r.destroysAgain, s.DestroysRetried)
	add(r.destroysFailed, s.DestroysFailed)
	add(r.dropped, s.Dropped)
	add(r.snapshotsDeleted, s.SnapshotsDeleted)
	add(r.artifactsDeleted, s.ArtifactsDeleted)
	add(r.failed, s.CollectsFailed)
	add(r.budgets, s.BudgetsSpent)
	if !s.Aborted {
		r.looked(s.Looks)
	}
}

// looked takes the looks of one cycle, which name every registered host.
func (r *reconcileMetrics) looked(looks []HostLook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := map[string]bool{}
	for _, l := range looks {
		if !slices.Contains([]string{LookComplete, LookPartial, LookUnseen}, l.Result) {
			l.Result = LookUnseen
		}
		now[l.HostID] = true
		r.looks.WithLabelValues(l.HostID, l.Result).Inc()
		r.lookDuration.Observe(l.Took.Seconds())
		r.hostTracked.WithLabelValues(l.HostID).Set(float64(l.Tracked))
		r.hostLookAt.WithLabelValues(l.HostID).SetToCurrentTime()
		complete := 0.0
		if l.Result == LookComplete {
			complete = 1
			r.hostListed.WithLabelValues(l.HostID).Set(float64(l.Listed))
		}
		r.hostSeen.WithLabelValues(l.HostID).Set(complete)
	}
	for id := range r.hosts {
		if now[id] {
			continue
		}
		host := prometheus.Labels{"host": id}
		r.looks.DeletePartialMatch(host)
		for _, v := range []*prometheus.GaugeVec{r.hostTracked, r.hostListed, r.hostSeen, r.hostLookAt} {
			v.DeletePartialMatch(host)
		}
	}
	r.hosts = now
}
