// Package hostmetrics is what a host agent counts of itself, for whoever holds
// its token.
package hostmetrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fusevm/fuse/internal/fleet"
)

// Metrics of one host agent.
type Metrics struct {
	gather *prometheus.Registry
	ops    *prometheus.CounterVec
	took   *prometheus.HistogramVec
	sweeps *prometheus.CounterVec
	found  *prometheus.GaugeVec
	golden *prometheus.CounterVec
}

// Disk reads the file system of the host's data, in bytes.
type Disk func() (free, total int64, err error)

// New makes them. phases counts the VMs by phase, disk reads the file system,
// when they are asked.
func New(phases func() map[string]int, disk Disk) *Metrics {
	m := &Metrics{
		gather: prometheus.NewRegistry(),
		ops: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fuse_hostd_operations_total", Help: "Operations by verb and resulting code.",
		}, []string{"verb", "code"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fuse_hostd_operation_seconds", Help: "Time that operations took.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2.5, 12),
		}, []string{"verb"}),
		sweeps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fuse_hostd_swept_objects_total", Help: "Leftover host objects that sweeps removed, by kind.",
		}, []string{"kind"}),
		found: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fuse_hostd_unknown_objects", Help: "Host objects of unknown origin that the last sweep left alone, by kind.",
		}, []string{"kind"}),
		golden: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fuse_hostd_golden_total", Help: "Creates that looked for a golden snapshot, by what became of it: used, none or failed.",
		}, []string{"result"}),
	}
	for _, result := range []string{"used", "none", "failed"} { // a rate needs its zero
		m.golden.WithLabelValues(result)
	}
	m.gather.MustRegister(m.ops, m.took, m.sweeps, m.found, m.golden, phaseGauge{phases}, diskGauge{disk})
	return m
}

// Handler serves them in the format that Prometheus reads.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.gather, promhttp.HandlerOpts{})
}

// Observe counts one operation that began then and ended now with err.
func (m *Metrics) Observe(verb string, begun time.Time, err error) {
	code := "ok"
	if err != nil {
		code = string(fleet.CodeOf(err))
	}
	m.ops.WithLabelValues(verb, code).Inc()
	m.took.WithLabelValues(verb).Observe(time.Since(begun).Seconds())
}

// Golden counts a create that looked for a golden snapshot.
func (m *Metrics) Golden(result string) { m.golden.WithLabelValues(result).Inc() }

// Removed counts a leftover that a sweep removed.
func (m *Metrics) Removed(kind string) { m.sweeps.WithLabelValues(kind).Inc() }

// Found says which kinds of unknown objects the last sweep left alone, one
// entry for each object.
func (m *Metrics) Found(kinds []string) {
	m.found.Reset()
	for _, kind := range kinds {
		m.found.WithLabelValues(kind).Inc()
	}
}

type phaseGauge struct{ phases func() map[string]int }

var phaseDesc = prometheus.NewDesc("fuse_hostd_vms", "VMs of this host by phase.", []string{"phase"}, nil)

// Describe implements prometheus.Collector.
func (g phaseGauge) Describe(ch chan<- *prometheus.Desc) { ch <- phaseDesc }

// Collect implements prometheus.Collector.
func (g phaseGauge) Collect(ch chan<- prometheus.Metric) {
	for phase, n := range g.phases() {
		ch <- prometheus.MustNewConstMetric(phaseDesc, prometheus.GaugeValue, float64(n), phase)
	}
}

// diskGauge reads the file system when it is asked; one that cannot be read has
// no series.
type diskGauge struct{ read Disk }

var (
	freeDesc  = prometheus.NewDesc("fuse_hostd_disk_free_bytes", "Free bytes of the file system with the host's data.", nil, nil)
	totalDesc = prometheus.NewDesc("fuse_hostd_disk_bytes", "Size of the file system with the host's data.", nil, nil)
)

func (g diskGauge) Describe(ch chan<- *prometheus.Desc) {
	ch <- freeDesc
	ch <- totalDesc
}

func (g diskGauge) Collect(ch chan<- prometheus.Metric) {
	if free, total, err := g.read(); err == nil {
		ch <- prometheus.MustNewConstMetric(freeDesc, prometheus.GaugeValue, float64(free))
		ch <- prometheus.MustNewConstMetric(totalDesc, prometheus.GaugeValue, float64(total))
	}
}
