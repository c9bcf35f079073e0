package kit

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/fusevm/fuse/internal/api/gen"
)

// LimitForm is how one limit is written.
const LimitForm = "NAME=VALUE"

// LimitHelp names the limits there are.
const LimitHelp = "cpu (CPUs, such as 0.5), cpu-weight, disk-read, disk-write, net-in, net-out (bytes a second, such as 10M), disk-iops"

// ParseLimits reads limits; the server judges the numbers.
func ParseLimits(args []string) (*gen.ResourceLimits, error) {
	out := &gen.ResourceLimits{}
	for _, arg := range args {
		name, text, ok := strings.Cut(arg, "=")
		n, err := amount(text)
		if !ok || err != nil {
			return nil, fmt.Errorf("--limit %q is not of the form %s", arg, LimitForm)
		}
		switch name {
		case "cpu":
			out.CPUMillis = int(math.Round(n * 1000))
		case "cpu-weight":
			out.CPUWeight = int(n)
		case "disk-read":
			out.DiskReadBps = int64(n)
		case "disk-write":
			out.DiskWriteBps = int64(n)
		case "disk-iops":
			out.DiskIOPS = int64(n)
		case "net-in":
			out.NetInBps = int64(n)
		case "net-out":
			out.NetOutBps = int64(n)
		default:
			return nil, fmt.Errorf("--limit %q: there is %s", name, LimitHelp)
		}
	}
	return out, nil
}

// amount is a number with K, M or G for its 1024, 1024², 1024³ fold.
func amount(text string) (float64, error) {
	factor := 1.0
	for i, unit := range []string{"K", "M", "G"} {
		if rest, ok := strings.CutSuffix(strings.ToUpper(text), unit); ok {
			text, factor = rest, math.Pow(1024, float64(i+1))
		}
	}
	n, err := strconv.ParseFloat(text, 64)
	if err == nil && (math.IsNaN(n) || math.Abs(n*factor) > 1<<53) {
		err = strconv.ErrRange
	}
	return n * factor, err
}

// Bytes is a number of bytes for people.
func Bytes(n float64) string {
	for _, unit := range []string{"B", "KiB", "MiB", "GiB", "TiB"} {
		if math.Abs(n) < 1024 || unit == "TiB" {
			if unit == "B" || n >= 100 {
				return fmt.Sprintf("%.0f %s", n, unit)
			}
			return fmt.Sprintf("%.1f %s", n, unit)
		}
		n /= 1024
	}
	return ""
}
