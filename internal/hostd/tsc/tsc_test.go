package tsc

import (
	"os"
	"regexp"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Two measurements of different length agree to a thousandth, and with the
// machine's nominal speed where it tells one.
func TestKHz(t *testing.T) {
	got := KHz()
	if runtime.GOARCH != "amd64" {
		if got != 0 {
			t.Errorf("%d kHz of a counter that is not there", got)
		}
		return
	}
	again := measure(200 * time.Millisecond)
	if got < 100_000 || got > 10_000_000 || abs(got-again)*1000 > got {
		t.Errorf("%d kHz, and then %d", got, again)
	}
	raw, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	if m := regexp.MustCompile(`model name\s*:.*@ ([0-9.]+)GHz`).FindSubmatch(raw); m != nil {
		ghz, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		if nominal := int(ghz * 1e6); abs(nominal-got)*20 > nominal {
			t.Errorf("%d kHz, and the processor says %d", got, nominal)
		}
	}
}

func abs(n int) int { return max(n, -n) }
