package kit

import (
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/api/gen"
)

func TestParseLimits(t *testing.T) {
	got, err := ParseLimits([]string{"cpu=0.5", "cpu-weight=7", "disk-read=10M", "disk-write=1.5k", "disk-iops=300", "net-in=2G", "net-out=9"})
	want := gen.ResourceLimits{CPUMillis: 500, CPUWeight: 7, DiskReadBps: 10 << 20, DiskWriteBps: 1536, DiskIOPS: 300, NetInBps: 2 << 30, NetOutBps: 9}
	if err != nil || *got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"cpu", "cpu=", "cpu=x", "ram=1", "net-in=1T", "net-in=NaN", "net-in=1e300", "=1"} {
		if got, err := ParseLimits([]string{bad}); err == nil || !strings.Contains(err.Error(), "--limit") {
			t.Errorf("%q is %+v, %v", bad, got, err)
		}
	}
	for n, text := range map[float64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 200 << 10: "200 KiB", 3 << 40: "3.0 TiB", 5000 << 40: "5000 TiB"} {
		if got := Bytes(n); got != text {
			t.Errorf("%v is %q, want %q", n, got, text)
		}
	}
}
