package metrics

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// PlayguardPass is one pass over one marquee in figures.
type PlayguardPass struct {
	Verdict  string // seen, partial, unseen or skipped
	Reason   string // why not all was seen; empty if it was
	Took     time.Duration
	Acts     map[string]int // what was done, by kind
	Refusals map[string]int // what was not done, by guard: an ordinary outcome
	Moved    int            // records that changed meanwhile
}

// Playguard is what it looks after at the moment of a scrape.
type Playguard struct {
	Marquees    map[string]int // by ok, quarantined, disabled
	Playgrounds map[string]int // by state
	Connections map[string]int // by live, draining
	Sweep       map[string]int // armed and halted marquees; suspects, and projects set aside
}

type playguardMetrics struct {
	passes, acts, refusals, operations, told, followed *prometheus.CounterVec
	took                                               prometheus.Histogram
	moved                                              prometheus.Counter

	mu    sync.Mutex
	known map[string]map[string]bool // values by label; guarded by mu
	read  atomic.Pointer[func() Playguard]

	marquees, playgrounds, connections, sweep *prometheus.Desc
}

// maxWords bounds the distinct values of each of Playguard's labels: its rules
// and guards are a closed list that this package does not see.
const maxWords = 48

func newPlayguardMetrics(m *Metrics) *playguardMetrics {
	p := &playguardMetrics{
		passes: m.counterVec("playguard_passes_total", "Passes over marquees, by what they saw: seen, partial, unseen or skipped, and why not all.", "verdict", "reason"),
		took: m.histogram("playguard_pass_seconds", "Time of a pass over a marquee, what it sets in motion left out.",
			[]float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60}),
		acts:       m.counterVec("playguard_acts_total", "Steps that changed or began something, by what they do.", "act"),
		refusals:   m.counterVec("playguard_refusals_total", "Steps that were not taken, by the guard that did not let them: an ordinary outcome.", "guard"),
		moved:      m.counter("playguard_records_moved_total", "Decisions dropped because the record changed meanwhile."),
		followed:   m.counterVec("playguard_branches_total", "Branches that were asked for at their servers, and fetched, by what came of it.", "what", "result"),
		operations: m.counterVec("playguard_operations_total", "Operations on marquees by kind and end: ok, failed, timed_out, lost or refused.", "kind", "result"),
		told:       m.counterVec("playguard_notifications_total", "Notifications by channel, and what became of them: sent, failed, given_up, or held for a digest.", "channel", "result"),
		known:      map[string]map[string]bool{},
	}
	desc := func(name, help, label string) *prometheus.Desc {
		m.series[name] = []string{label}
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, []string{label}, nil)
	}
	p.marquees = desc("playguard_marquees", "Marquees: ok, quarantined by the loop, or disabled by a person.", "state")
	p.playgrounds = desc("playguard_playgrounds", "Playgrounds by state.", "state")
	p.connections = desc("playguard_ssh_connections", "SSH connections to marquees: live, or draining.", "state")
	p.sweep = desc("playguard_sweep", "The orphan sweep: marquees where it is armed or that halted it, orphans it watches, projects set aside.", "state")
	m.registry.MustRegister(p)
	return p
}

// word keeps the values of a label few.
func (p *playguardMetrics) word(label, value string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known[label] == nil {
		p.known[label] = map[string]bool{}
	}
	if known := p.known[label]; !known[value] {
		if len(known) >= maxWords {
			return other
		}
		known[value] = true
	}
	return value
}

// PlayguardPassed takes one pass.
func (m *Metrics) PlayguardPassed(s PlayguardPass) {
	p := m.playguard
	p.passes.WithLabelValues(p.word("verdict", s.Verdict), p.word("reason", s.Reason)).Inc()
	if s.Verdict != "skipped" {
		p.took.Observe(s.Took.Seconds())
	}
	for act, n := range s.Acts {
		p.acts.WithLabelValues(p.word("act", act)).Add(float64(n))
	}
	for guard, n := range s.Refusals {
		p.refusals.WithLabelValues(p.word("guard", guard)).Add(float64(n))
	}
	p.moved.Add(float64(s.Moved))
}

// PlayguardOperated counts one operation on a marquee.
func (m *Metrics) PlayguardOperated(kind, result string) {
	p := m.playguard
	p.operations.WithLabelValues(p.word("kind", kind), p.word("result", result)).Inc()
}

// PlayguardFollowed counts for m what came of asking for a branch or fetching it.
func PlayguardFollowed(m *Metrics, what, result string) {
	p := m.playguard
	p.followed.WithLabelValues(p.word("what", what), p.word("result", result)).Inc()
}

// Told counts what became of a notification.
func Told(m *Metrics, channel, result string) {
	p := m.playguard
	p.told.WithLabelValues(p.word("channel", channel), p.word("result", result)).Inc()
}

// WatchPlayguard is WatchFleet for marquees and playgrounds.
func (m *Metrics) WatchPlayguard(read func() Playguard) { store(&m.playguard.read, read) }

// Describe implements prometheus.Collector.
func (p *playguardMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- p.marquees
	ch <- p.playgrounds
	ch <- p.connections
	ch <- p.sweep
}

// Collect implements prometheus.Collector.
func (p *playguardMetrics) Collect(ch chan<- prometheus.Metric) {
	read := p.read.Load()
	if read == nil {
		return
	}
	now, to := (*read)(), sink{ch}
	for _, g := range []struct {
		desc *prometheus.Desc
		by   map[string]int
	}{{p.marquees, now.Marquees}, {p.playgrounds, now.Playgrounds}, {p.connections, now.Connections}, {p.sweep, now.Sweep}} {
		for state, n := range g.by {
			to.gauge(g.desc, float64(n), state)
		}
	}
}
