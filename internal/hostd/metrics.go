package hostd

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
)

// metrics of one host agent; served to whoever holds its token.
type metrics struct {
	gather *prometheus.Registry
	ops    *prometheus.CounterVec
	took   *prometheus.HistogramVec
	sweeps *prometheus.CounterVec
	found  *prometheus.GaugeVec
}

func newMetrics(reg *registry) *metrics {
	m := &metrics{
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
	}
	m.gather.MustRegister(m.ops, m.took, m.sweeps, m.found, phaseGauge{reg})
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.gather, promhttp.HandlerOpts{})
}

func (m *metrics) observe(verb string, begun time.Time, err error) {
	code := "ok"
	if err != nil {
		code = string(fleet.CodeOf(err))
	}
	m.ops.WithLabelValues(verb, code).Inc()
	m.took.WithLabelValues(verb).Observe(time.Since(begun).Seconds())
}

func (m *metrics) swept(r driver.SweepReport) {
	for _, o := range r.Removed {
		m.sweeps.WithLabelValues(o.Kind).Inc()
	}
	m.found.Reset()
	for _, o := range r.Reported {
		m.found.WithLabelValues(o.Kind).Inc()
	}
}

// phaseGauge counts the VMs by phase when it is asked.
type phaseGauge struct{ reg *registry }

var phaseDesc = prometheus.NewDesc("fuse_hostd_vms", "VMs of this host by phase.", []string{"phase"}, nil)

func (g phaseGauge) Describe(ch chan<- *prometheus.Desc) { ch <- phaseDesc }

func (g phaseGauge) Collect(ch chan<- prometheus.Metric) {
	counts := map[phase]int{}
	g.reg.list(func(l *life) bool { counts[l.phase]++; return false })
	for p := phaseCreating; p <= phaseCondemned; p++ {
		ch <- prometheus.MustNewConstMetric(phaseDesc, prometheus.GaugeValue, float64(counts[p]), p.String())
	}
}
