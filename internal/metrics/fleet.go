package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fusevm/fuse/internal/fleet"
)

// StateHost is a label pair of fleet_vms.
type StateHost struct {
	State  fleet.VMState
	HostID string
}

// StateMode is a label pair of fleet_snapshots.
type StateMode struct {
	State fleet.SnapshotState
	Mode  fleet.SnapshotMode
}

// HostFigures is one host as a scrape sees it.
type HostFigures struct {
	Host     *fleet.Host
	LastSeen time.Time // zero: not seen by this server
	// Looked is whether this server has tried to see the host at all.
	Looked           bool
	Unreachable      bool
	UnreachableSince time.Time
	Foreign          int  // machines of other control planes on it
	Fenced           bool // the host takes no change from this server
	Strange          bool // it shows another certificate than the registered one
	Returning        bool // it came back and takes nothing new yet
}

// Fleet is the fleet at the moment of a scrape.
type Fleet struct {
	VMs         map[StateHost]int
	Hosts       []HostFigures
	Snapshots   map[StateMode]int
	DeadLetters map[fleet.DeadLetterKind]int
	// EventSeq is the newest event's number, EventOldest the time of the oldest
	// one that is kept, if known.
	EventSeq    uint64
	EventOldest time.Time
	// Paused is since when destruction is stopped, by host, "" for all.
	Paused map[string]time.Time
}

// Lease is this process's part in the leadership.
type Lease struct {
	Leader bool
	Term   int64
	// Left is for how long the lease lasts unless it is renewed; Forever says
	// that it ends only when it is given up.
	Left    time.Duration
	Forever bool
}

// Pool is the use of a pool of database connections.
type Pool struct {
	InUse, Idle, Max int
	Waits            int64         // acquisitions that had to wait
	Waited           time.Duration // and for how long in all
}

// Disk is the file system that holds the server's data.
type Disk struct{ FreeBytes, TotalBytes uint64 }

// Webhooks are the deliveries that are under way.
type Webhooks struct {
	Pending int
	Oldest  time.Time // when the longest waiting one came to be; zero: none waits
}

// sources are read at every scrape; nil ones have no series.
type sources struct {
	fleet atomic.Pointer[func() Fleet]
	lease atomic.Pointer[func() Lease]
	pool  atomic.Pointer[func() Pool]
	disk  atomic.Pointer[func() (Disk, bool)]
	hooks atomic.Pointer[func() Webhooks]
}

func store[T any](p *atomic.Pointer[func() T], read func() T) {
	if read == nil {
		p.Store(nil)
		return
	}
	p.Store(&read)
}

// WatchFleet makes every scrape ask read for the fleet, in place of whom it
// asked before; nil for nobody. read must be quick and must not call back.
func (m *Metrics) WatchFleet(read func() Fleet) { store(&m.sources.fleet, read) }

// WatchLease is WatchFleet for the leadership.
func (m *Metrics) WatchLease(read func() Lease) { store(&m.sources.lease, read) }

// WatchPool is WatchFleet for the database's connections.
func (m *Metrics) WatchPool(read func() Pool) { store(&m.sources.pool, read) }

// WatchWebhooks is WatchFleet for the deliveries of webhooks.
func (m *Metrics) WatchWebhooks(read func() Webhooks) { store(&m.sources.hooks, read) }

// WatchDisk is WatchFleet for the data's file system; false leaves it out.
func (m *Metrics) WatchDisk(read func() (Disk, bool)) {
	if read == nil {
		m.sources.disk.Store(nil)
		return
	}
	m.sources.disk.Store(&read)
}

// scrape reads the sources.
type scrape struct {
	from *sources
	all  []*prometheus.Desc

	vms, info, lastSeen, capacity, allocated *prometheus.Desc
	reachable, unreachableSince, foreign     *prometheus.Desc
	fenced, strange, returning               *prometheus.Desc
	snapshots, dead, paused                  *prometheus.Desc
	eventSeq, eventOldest                    *prometheus.Desc
	leader, term, left                       *prometheus.Desc
	connections, waits, waited               *prometheus.Desc
	diskFree, diskTotal                      *prometheus.Desc
	pending, oldestPending                   *prometheus.Desc
}

func newScrape(m *Metrics) *scrape {
	c := &scrape{from: &m.sources}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		d := prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
		c.all = append(c.all, d)
		m.series[name] = labels
		return d
	}
	c.vms = desc("fleet_vms", "Environments by state and host.", "state", "host")
	c.info = desc("host_info", "A registered host; always 1.", "host", "state", "region", "backend", "arch")
	c.lastSeen = desc("host_last_seen_timestamp_seconds", "When the host last answered.", "host")
	c.capacity = desc("host_capacity", "What a host has.", "host", "resource")
	c.allocated = desc("host_allocated", "What the environments on a host hold.", "host", "resource")
	c.reachable = desc("host_reachable", "Whether the host answers: 0 after three looks missed, or one and 90 s of silence.", "host")
	c.unreachableSince = desc("host_unreachable_since_timestamp_seconds", "Since when an unreachable host has missed every look.", "host")
	c.fenced = desc("host_fenced", "Whether the host takes no change from this server's state store, which is a copy or an older one.", "host")
	c.strange = desc("host_certificate_changed", "Whether the host shows another certificate than the registered one, and is refused.", "host")
	c.returning = desc("host_returning", "Whether the host came back and takes nothing new until what it runs was compared with what was decided.", "host")
	c.foreign = desc("host_foreign_vms", "Machines of other control planes on a host, which are left alone.", "host")
	c.snapshots = desc("fleet_snapshots", "Snapshots by state and mode.", "state", "mode")
	c.dead = desc("dead_letters", "Dead letters that are kept, by kind.", "kind")
	c.paused = desc("reconcile_paused_since_timestamp_seconds", "Since when destruction is stopped, on one host or, with an empty host, everywhere.", "host")
	c.eventSeq = desc("events_total", "Events that were ever written: the number of the newest.")
	c.eventOldest = desc("event_oldest_timestamp_seconds", "Time of the oldest event that is kept.")
	c.leader = desc("leader", "Whether this process leads the fleet; 0 on a standby.")
	c.term = desc("lease_term", "Term of the leadership.")
	c.left = desc("lease_left_seconds", "For how long the lease lasts unless it is renewed; +Inf where it ends only when it is given up.")
	c.connections = desc("store_pool_connections", "Connections to the database: in use, idle, and the most there may be.", "state")
	c.waits = desc("store_pool_waits_total", "Times that a connection had to be waited for.")
	c.waited = desc("store_pool_wait_seconds_total", "Time spent waiting for connections.")
	c.diskFree = desc("data_disk_free_bytes", "Free bytes of the file system with the server's data.")
	c.pending = desc("webhook_pending_deliveries", "Webhook deliveries that are not done yet.")
	c.oldestPending = desc("webhook_oldest_pending_timestamp_seconds", "When the webhook delivery that waits longest came to be.")
	c.diskTotal = desc("data_disk_bytes", "Size of the file system with the server's data.")
	return c
}

// Describe implements prometheus.Collector.
func (c *scrape) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.all {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *scrape) Collect(ch chan<- prometheus.Metric) {
	s := sink{ch}
	if read := c.from.fleet.Load(); read != nil {
		c.fleet(s, (*read)())
	}
	if read := c.from.lease.Load(); read != nil {
		c.lease(s, (*read)())
	}
	if read := c.from.pool.Load(); read != nil {
		c.pool(s, (*read)())
	}
	if read := c.from.hooks.Load(); read != nil {
		hooks := (*read)()
		s.gauge(c.pending, float64(hooks.Pending))
		if !hooks.Oldest.IsZero() {
			s.gauge(c.oldestPending, unix(hooks.Oldest))
		}
	}
	if read := c.from.disk.Load(); read != nil {
		if d, ok := (*read)(); ok {
			s.gauge(c.diskFree, float64(d.FreeBytes))
			s.gauge(c.diskTotal, float64(d.TotalBytes))
		}
	}
}

func (c *scrape) fleet(s sink, f Fleet) {
	for key, n := range f.VMs {
		s.gauge(c.vms, float64(n), string(key.State), key.HostID)
	}
	for key, n := range f.Snapshots {
		s.gauge(c.snapshots, float64(n), string(key.State), string(key.Mode))
	}
	for _, kind := range fleet.DeadLetterKinds {
		s.gauge(c.dead, float64(f.DeadLetters[kind]), string(kind))
	}
	for host, since := range f.Paused {
		s.gauge(c.paused, unix(since), host)
	}
	s.counter(c.eventSeq, float64(f.EventSeq))
	if !f.EventOldest.IsZero() {
		s.gauge(c.eventOldest, unix(f.EventOldest))
	}
	for _, h := range f.Hosts {
		c.host(s, h)
	}
}

func (c *scrape) host(s sink, h HostFigures) {
	host := h.Host
	s.gauge(c.info, 1, host.ID, string(host.State), host.Region, string(host.Backend), host.Capacity.Arch)
	if !h.LastSeen.IsZero() {
		s.gauge(c.lastSeen, unix(h.LastSeen), host.ID)
	}
	if h.Looked {
		s.gauge(c.reachable, truth(!h.Unreachable), host.ID)
		s.gauge(c.foreign, float64(h.Foreign), host.ID)
		s.gauge(c.fenced, truth(h.Fenced), host.ID)
		s.gauge(c.strange, truth(h.Strange), host.ID)
		s.gauge(c.returning, truth(h.Returning), host.ID)
	}
	if h.Unreachable {
		s.gauge(c.unreachableSince, unix(h.UnreachableSince), host.ID)
	}
	for _, res := range []struct {
		name string
		of   func(fleet.HostCapacity) int
	}{
		{"cpus", func(c fleet.HostCapacity) int { return c.CPUs }},
		{"ram_mb", func(c fleet.HostCapacity) int { return c.RamMB }},
		{"storage_gb", func(c fleet.HostCapacity) int { return c.StorageGB }},
		{"vms", func(c fleet.HostCapacity) int { return c.VMCount }},
		{"gpus", func(c fleet.HostCapacity) int { return c.GPUs }},
	} {
		s.gauge(c.capacity, float64(res.of(host.Capacity)), host.ID, res.name)
		s.gauge(c.allocated, float64(res.of(host.Allocated)), host.ID, res.name)
	}
}

func (c *scrape) lease(s sink, l Lease) {
	s.gauge(c.leader, truth(l.Leader))
	if !l.Leader {
		return
	}
	s.gauge(c.term, float64(l.Term))
	left := l.Left.Seconds()
	if l.Forever {
		left = inf
	}
	s.gauge(c.left, left)
}

func (c *scrape) pool(s sink, p Pool) {
	s.gauge(c.connections, float64(p.InUse), "in_use")
	s.gauge(c.connections, float64(p.Idle), "idle")
	s.gauge(c.connections, float64(p.Max), "max")
	s.counter(c.waits, float64(p.Waits))
	s.counter(c.waited, p.Waited.Seconds())
}
