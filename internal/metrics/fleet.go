package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fusevm/fuse/internal/fleet"
)

// StateHost is a label pair of fleet_vms.
type StateHost struct {
	State  fleet.VMState
	HostID string
}

// HostFigures is one host as a scrape sees it.
type HostFigures struct {
	Host     *fleet.Host
	LastSeen time.Time // zero: not seen by this server
}

// Fleet is the fleet at the moment of a scrape.
type Fleet struct {
	VMs   map[StateHost]int
	Hosts []HostFigures
}

// WatchFleet makes every scrape ask read for the fleet. read must be quick and
// must not call back. It is called once, when the server is wired.
func (m *Metrics) WatchFleet(read func() Fleet) {
	m.registry.MustRegister(&fleetCollector{
		read:      read,
		vms:       desc("fleet_vms", "Environments by state and host.", "state", "host"),
		info:      desc("host_info", "A registered host; always 1.", "host", "state", "region", "backend", "arch"),
		lastSeen:  desc("host_last_seen_timestamp_seconds", "When the host last answered.", "host"),
		capacity:  desc("host_capacity", "What a host has.", "host", "resource"),
		allocated: desc("host_allocated", "What the environments on a host hold.", "host", "resource"),
	})
}

type fleetCollector struct {
	read                                     func() Fleet
	vms, info, lastSeen, capacity, allocated *prometheus.Desc
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

// Describe implements prometheus.Collector.
func (c *fleetCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.vms, c.info, c.lastSeen, c.capacity, c.allocated} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *fleetCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	f := c.read()
	for key, n := range f.VMs {
		gauge(c.vms, float64(n), string(key.State), key.HostID)
	}
	for _, h := range f.Hosts {
		host := h.Host
		gauge(c.info, 1, host.ID, string(host.State), host.Region, string(host.Backend), host.Capacity.Arch)
		if !h.LastSeen.IsZero() {
			gauge(c.lastSeen, float64(h.LastSeen.UnixMilli())/1000, host.ID)
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
			gauge(c.capacity, float64(res.of(host.Capacity)), host.ID, res.name)
			gauge(c.allocated, float64(res.of(host.Allocated)), host.ID, res.name)
		}
	}
}
