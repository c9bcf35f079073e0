package metrics

import "github.com/prometheus/client_golang/prometheus"

// usageMetrics are what machines take, by host: one environment's own figures
// are in the API, where their number does no harm.
type usageMetrics struct {
	cpu      *prometheus.CounterVec
	disk     *prometheus.CounterVec
	net      *prometheus.CounterVec
	held     *prometheus.GaugeVec
	machines *prometheus.GaugeVec
}

// HostUsage is what the machines of a host have taken since it was told last,
// and hold now.
type HostUsage struct {
	CPUSeconds                         float64
	DiskRead, DiskWrite, NetIn, NetOut int64
	MemoryBytes, DiskBytes             int64
	Machines                           int
}

func newUsageMetrics(m *Metrics) usageMetrics {
	return usageMetrics{
		cpu:      m.counterVec("usage_cpu_seconds_total", "Processor time that the machines of a host have taken.", "host"),
		disk:     m.counterVec("usage_disk_bytes_total", "Bytes that they have read and written.", "host", "direction"),
		net:      m.counterVec("usage_network_bytes_total", "Bytes that they have got from the world and sent to it.", "host", "direction"),
		held:     m.gaugeVec("usage_held_bytes", "Memory and disk that they hold.", "host", "resource"),
		machines: m.gaugeVec("usage_machines", "How many machines these figures are of.", "host"),
	}
}

// HostUsed adds what the machines of a host have taken.
func (m *Metrics) HostUsed(host string, u HostUsage) {
	add := func(v *prometheus.CounterVec, n float64, labels ...string) {
		v.WithLabelValues(append([]string{host}, labels...)...).Add(max(0, n))
	}
	add(m.usage.cpu, u.CPUSeconds)
	add(m.usage.disk, float64(u.DiskRead), "read")
	add(m.usage.disk, float64(u.DiskWrite), "write")
	add(m.usage.net, float64(u.NetIn), "in")
	add(m.usage.net, float64(u.NetOut), "out")
	m.usage.held.WithLabelValues(host, "memory").Set(float64(u.MemoryBytes))
	m.usage.held.WithLabelValues(host, "disk").Set(float64(u.DiskBytes))
	m.usage.machines.WithLabelValues(host).Set(float64(u.Machines))
}
