package api

import (
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/fleet"
)

func toLimits(l gen.ResourceLimits) fleet.ResourceLimits {
	return fleet.ResourceLimits{
		CPUWeight: l.CPUWeight, CPUMillis: l.CPUMillis, DiskReadBps: l.DiskReadBps, DiskWriteBps: l.DiskWriteBps, DiskIOPS: l.DiskIOPS,
		NetInBps: l.NetInBps, NetOutBps: l.NetOutBps,
	}
}

func fromLimits(l fleet.ResourceLimits) *gen.ResourceLimits {
	if l == (fleet.ResourceLimits{}) {
		return nil
	}
	return &gen.ResourceLimits{
		CPUWeight: l.CPUWeight, CPUMillis: l.CPUMillis, DiskReadBps: l.DiskReadBps, DiskWriteBps: l.DiskWriteBps, DiskIOPS: l.DiskIOPS,
		NetInBps: l.NetInBps, NetOutBps: l.NetOutBps,
	}
}

// limits appends what few environments have.
func (o *object) limits(s *gen.Spec) {
	if len(s.ServiceImages) > 0 {
		o.key("service_images")
		o.b = append(o.b, '[')
		for i, image := range s.ServiceImages {
			if i > 0 {
				o.b = append(o.b, ',')
			}
			o.b = appendString(o.b, image)
		}
		o.b = append(o.b, ']')
	}
	if l := s.Limits; l != nil {
		o.key("limits")
		in := object{b: append(o.b, '{')}
		in.nonZero("cpu_weight", int64(l.CPUWeight))
		in.nonZero("cpu_millis", int64(l.CPUMillis))
		in.nonZero("disk_read_bps", l.DiskReadBps)
		in.nonZero("disk_write_bps", l.DiskWriteBps)
		in.nonZero("disk_iops", l.DiskIOPS)
		in.nonZero("net_in_bps", l.NetInBps)
		in.nonZero("net_out_bps", l.NetOutBps)
		o.b = append(in.b, '}')
	}
}
