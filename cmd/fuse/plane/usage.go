package plane

import (
	usageroutes "github.com/fusevm/fuse/internal/api/usage"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/usage"
)

// wireUsage makes what knows what machines take.
func wireUsage(p *Plane) {
	p.usage = usage.New(usage.Config{
		Store: p.Store, Providers: p.Hosts, Logger: p.log,
		Took: func(host string, t usage.Taken) {
			p.metrics.HostUsed(host, metrics.HostUsage{
				CPUSeconds: t.CPUSeconds, DiskRead: t.DiskRead, DiskWrite: t.DiskWrite, NetIn: t.In, NetOut: t.Out,
				MemoryBytes: t.Memory, DiskBytes: t.Disk, Machines: t.Machines,
			})
		},
	})
}

func usageRoutes(p *Plane) []web.Route { return usageroutes.Routes(p.usage) }
