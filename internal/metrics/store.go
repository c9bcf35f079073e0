package metrics

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// How a commit ended.
const (
	CommitOK        = "ok"
	CommitRefused   = "not_committed" // certainly without effect
	CommitStaleTerm = "stale_term"
	CommitUnknown   = "unknown" // its outcome has to be looked up
)

type storeMetrics struct {
	commits *prometheus.CounterVec
	took    prometheus.Histogram
	writes  prometheus.Histogram
}

func newStoreMetrics(m *Metrics) storeMetrics {
	return storeMetrics{
		commits: m.counterVec("store_commits_total", "Commits of the state by result: ok, not_committed, stale_term or unknown.", "result"),
		took: m.histogram("store_commit_seconds", "Time of a commit in the store; what is waiting for it is committed together by the next.",
			[]float64{.0002, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}),
		writes: m.histogram("store_commit_writes", "Rows and events of a commit.", []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000}),
	}
}

// CommitDone takes one commit: rows and events in it, its time and how it
// ended.
func (m *Metrics) CommitDone(writes int, took time.Duration, result string) {
	if !slices.Contains([]string{CommitOK, CommitRefused, CommitStaleTerm}, result) {
		result = CommitUnknown
	}
	m.store.commits.WithLabelValues(result).Inc()
	m.store.took.Observe(took.Seconds())
	m.store.writes.Observe(float64(writes))
}
