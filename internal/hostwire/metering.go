package hostwire

import (
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

// LimitsToWire and LimitsFromWire carry a machine's limits.
func LimitsToWire(l fleet.ResourceLimits) *hostwirev1.Limits {
	if l == (fleet.ResourceLimits{}) {
		return nil
	}
	return &hostwirev1.Limits{
		CpuWeight: int64(l.CPUWeight), CpuMillis: int64(l.CPUMillis), DiskReadBps: l.DiskReadBps, DiskWriteBps: l.DiskWriteBps, DiskIops: l.DiskIOPS,
		NetInBps: l.NetInBps, NetOutBps: l.NetOutBps,
	}
}

// LimitsFromWire is the other way of LimitsToWire.
func LimitsFromWire(m *hostwirev1.Limits) fleet.ResourceLimits {
	return fleet.ResourceLimits{
		CPUWeight: int(m.GetCpuWeight()), CPUMillis: int(m.GetCpuMillis()), DiskReadBps: m.GetDiskReadBps(), DiskWriteBps: m.GetDiskWriteBps(),
		DiskIOPS: m.GetDiskIops(), NetInBps: m.GetNetInBps(), NetOutBps: m.GetNetOutBps(),
	}
}

// UsageToWire and UsageFromWire carry what machines have taken.
func UsageToWire(u fleet.Usage) *hostwirev1.Usage {
	var reboots []*hostwirev1.GuestReboot
	for _, r := range u.Reboots {
		reboots = append(reboots, &hostwirev1.GuestReboot{AtUnixMs: r.At.UnixMilli(), Cause: r.Cause})
	}
	return &hostwirev1.Usage{
		Reboots: reboots,
		VmId:    u.VMID, Uid: u.UID, AtUnixMs: u.At.UnixMilli(), CpuSeconds: u.CPUSeconds, MemoryBytes: u.MemoryBytes, DiskBytes: u.DiskBytes,
		DiskReadBytes: u.DiskReadBytes, DiskWriteBytes: u.DiskWriteBytes, NetInBytes: u.NetInBytes, NetOutBytes: u.NetOutBytes,
	}
}

// UsageFromWire is the other way of UsageToWire.
func UsageFromWire(m *hostwirev1.Usage) fleet.Usage {
	var reboots []fleet.Reboot
	for _, r := range m.GetReboots() {
		reboots = append(reboots, fleet.Reboot{At: time.UnixMilli(r.GetAtUnixMs()).UTC(), Cause: r.GetCause()})
	}
	return fleet.Usage{
		Reboots: reboots, VMID: m.GetVmId(), UID: m.GetUid(), At: time.UnixMilli(m.GetAtUnixMs()).UTC(), CPUSeconds: m.GetCpuSeconds(), MemoryBytes: m.GetMemoryBytes(),
		DiskBytes: m.GetDiskBytes(), DiskReadBytes: m.GetDiskReadBytes(), DiskWriteBytes: m.GetDiskWriteBytes(),
		NetInBytes: m.GetNetInBytes(), NetOutBytes: m.GetNetOutBytes(),
	}
}
