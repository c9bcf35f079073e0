package fleet

import (
	"strings"
	"testing"
)

func TestResourceLimits(t *testing.T) {
	for _, ok := range []ResourceLimits{
		{}, {CPUWeight: 1}, {CPUMillis: 50, DiskReadBps: 1 << 16, DiskWriteBps: 1 << 20, DiskIOPS: 20, NetInBps: 4096, NetOutBps: 1 << 40},
	} {
		if err := ok.Check(); err != nil {
			t.Errorf("%+v: %v", ok, err)
		}
	}
	for field, bad := range map[string]ResourceLimits{
		"cpu_weight": {CPUWeight: 10_001}, "cpu_millis": {CPUMillis: 49}, "disk_read_bps": {DiskReadBps: -1},
		"disk_write_bps": {DiskWriteBps: 1}, "disk_iops": {DiskIOPS: 19}, "net_in_bps": {NetInBps: 4095}, "net_out_bps": {NetOutBps: 1<<40 + 1},
	} {
		if err := bad.Check(); err == nil || !strings.Contains(err.Error(), "spec.limits."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
