// Package metrics exports what the control plane counts, in Prometheus text
// format under the prefix orchestrator_. Loops and handlers hand their figures
// over as plain values; what is true at a moment is read when somebody scrapes.
// Every label has a bounded set of values; the one id among them is that of a
// registered host, and its series go when it goes.
package metrics

import (
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fusevm/fuse/internal/fleet"
)

const namespace = "orchestrator"

// other stands for a label value outside of its known set.
const other = "other"

// maxPhases bounds the distinct step names of creates.
const maxPhases = 32

// Metrics is the exporter. It is safe for concurrent use.
type Metrics struct {
	registry *prometheus.Registry
	series   map[string][]string // labels by name, of every series there can be

	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge

	streams   prometheus.Gauge
	lagged    prometheus.Counter
	delivered prometheus.Histogram

	deliveries *prometheus.CounterVec

	operations        *prometheus.CounterVec
	operationDuration *prometheus.HistogramVec
	phaseDuration     *prometheus.HistogramVec

	reconcile reconcileMetrics
	store     storeMetrics
	playguard *playguardMetrics
	usage     usageMetrics
	sources   sources

	mu     sync.Mutex
	phases map[string]bool // guarded by mu; at most maxPhases
}

// New makes an exporter that has Go's and the process's own figures.
func New(version string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), series: map[string][]string{}, phases: map[string]bool{}}
	m.registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	info := m.gaugeVec("build_info", "What is running; always 1.", "version", "goversion", "arch")
	info.WithLabelValues(version, runtime.Version(), runtime.GOARCH).Set(1)

	m.requests = m.counterVec("http_requests_total", "Answered requests.", "route", "method", "code")
	m.duration = m.histogramVec("http_request_duration_seconds", "Time to answer, event streams left out.",
		[]float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, "route", "method")
	m.inFlight = m.gauge("http_requests_in_flight", "Requests being answered.")
	m.streams = m.gauge("sse_subscribers", "Open event streams.")
	m.lagged = m.counter("sse_lagged_total", "Times a stream was too slow for its buffer and read the log again.")
	m.delivered = m.histogram("event_delivery_seconds", "Time from the commit of an event to its writing to a stream that follows the head.",
		[]float64{.001, .005, .01, .05, .1, .5, 1, 5, 30})

	m.deliveries = m.counterVec("webhook_deliveries_total", "Tries to deliver to a webhook: delivered, failed, or given up after the last.", "result")

	m.operations = m.counterVec("operations_total", "Lifecycle operations by outcome.", "op", "result")
	m.operationDuration = m.histogramVec("operations_duration_seconds", "Time of lifecycle operations.",
		[]float64{.01, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}, "op")
	m.phaseDuration = m.histogramVec("create_phase_seconds", "Time of each step of a create.",
		[]float64{.0005, .001, .005, .01, .05, .1, .5, 1, 2.5, 5, 10, 30, 60, 120}, "phase")
	m.reconcile = newReconcileMetrics(m)
	m.store = newStoreMetrics(m)
	m.playguard = newPlayguardMetrics(m)
	m.usage = newUsageMetrics(m)
	m.registry.MustRegister(newScrape(m))
	return m
}

// Handler answers scrapes.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 8, Timeout: 10 * time.Second})
}

// RequestStarted counts a request in; call the result when it is answered.
// route is the pattern, never the path.
func (m *Metrics) RequestStarted() (done func(route, method string, code int, took time.Duration)) {
	m.inFlight.Inc()
	return func(route, method string, code int, took time.Duration) {
		m.inFlight.Dec()
		method = knownMethod(method)
		m.requests.WithLabelValues(route, method, strconv.Itoa(code)).Inc()
		if took >= 0 {
			m.duration.WithLabelValues(route, method).Observe(took.Seconds())
		}
	}
}

// StreamOpened counts an event stream in; call the result when it ends.
func (m *Metrics) StreamOpened() (closed func()) {
	m.streams.Inc()
	return m.streams.Dec
}

// StreamLagged counts one stream that fell behind its buffer.
func (m *Metrics) StreamLagged() { m.lagged.Inc() }

// EventDelivered takes how long an event was on its way to a stream. An event
// that a stream reads from the log to catch up is none.
func (m *Metrics) EventDelivered(took time.Duration) { m.delivered.Observe(took.Seconds()) }

// Outcomes of a try to deliver to a webhook.
const (
	DeliveryDelivered = "delivered"
	DeliveryFailed    = "failed" // and tried again
	DeliveryGivenUp   = "given_up"
)

// WebhookTried counts one try to deliver.
func (m *Metrics) WebhookTried(result string) {
	switch result {
	case DeliveryDelivered, DeliveryFailed, DeliveryGivenUp:
	default:
		result = other
	}
	m.deliveries.WithLabelValues(result).Inc()
}

// Operations that operations_total knows (seed: OperationMetrics).
var operationNames = map[string]bool{
	"create": true, "destroy": true, "drain": true, "complete": true, "exec": true,
	"fork": true, "migrate": true, "migrate_live": true, "snapshot": true, "restore": true,
	"snapshot_delete": true, "pause": true, "resume": true, "idle_pause": true, "wake": true,
}

// OperationCompleted counts one lifecycle operation. The result is ok or the
// error's code.
func (m *Metrics) OperationCompleted(op string, took time.Duration, err error) {
	if !operationNames[op] {
		op = other
	}
	result := "ok"
	if err != nil {
		result = string(fleet.CodeOf(err))
	}
	m.operations.WithLabelValues(op, result).Inc()
	m.operationDuration.WithLabelValues(op).Observe(took.Seconds())
}

// CreatePhase records the time of one step of a create.
func (m *Metrics) CreatePhase(step string, took time.Duration) {
	m.mu.Lock()
	if !m.phases[step] {
		if len(m.phases) >= maxPhases {
			step = other
		}
		m.phases[step] = true
	}
	m.mu.Unlock()
	m.phaseDuration.WithLabelValues(step).Observe(took.Seconds())
}

func knownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	}
	return other
}

func add[C prometheus.Collector](m *Metrics, name string, labels []string, c C) C {
	m.series[name] = labels
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) counter(name, help string) prometheus.Counter {
	return add(m, name, nil, prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}))
}

func (m *Metrics) counterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return add(m, name, labels, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels))
}

func (m *Metrics) gauge(name, help string) prometheus.Gauge {
	return add(m, name, nil, prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}))
}

func (m *Metrics) gaugeVec(name, help string, labels ...string) *prometheus.GaugeVec {
	return add(m, name, labels, prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, labels))
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return add(m, name, nil, prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}))
}

func (m *Metrics) histogramVec(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return add(m, name, labels, prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets}, labels))
}
