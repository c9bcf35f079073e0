package golden

import (
	"cmp"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/hostd/driver"
)

// Entry is one golden snapshot, as what decides of it sees it.
type Entry struct {
	Key   string
	Shape driver.Shape
	Bytes int64 // on the host's disk
	Used  time.Time
	Busy  bool // a machine is being made from it
}

// Evict says which golden snapshots go, in order, so that the rest takes at
// most budget bytes: first those whose kernel, guest agent or QEMU is no longer
// the host's, then those that were used longest ago. Those in use stay. now is
// a shape that was made just now; empty: none.
func Evict(entries []Entry, budget int64, now driver.Shape) []string {
	order := slices.Clone(entries)
	stale := func(e Entry) bool { return now.Image != "" && e.Shape.Superseded(now) }
	slices.SortFunc(order, func(a, b Entry) int {
		if sa, sb := stale(a), stale(b); sa != sb {
			return map[bool]int{true: -1, false: 1}[sa]
		}
		return cmp.Or(a.Used.Compare(b.Used), cmp.Compare(a.Key, b.Key))
	})
	var total int64
	for _, e := range order {
		total += e.Bytes
	}
	var out []string
	for _, e := range order {
		if e.Busy || !stale(e) && total <= budget {
			continue
		}
		out = append(out, e.Key)
		total -= e.Bytes
	}
	return out
}

// Unload says whose memory is given back, in order, so that what stays in RAM
// is at most budget bytes: that of those used longest ago first. held is by
// key.
func Unload(entries []Entry, held map[string]int64, budget int64) []string {
	var total int64
	order := slices.Clone(entries)
	order = slices.DeleteFunc(order, func(e Entry) bool { return held[e.Key] == 0 })
	for _, e := range order {
		total += held[e.Key]
	}
	slices.SortFunc(order, func(a, b Entry) int { return cmp.Or(a.Used.Compare(b.Used), cmp.Compare(a.Key, b.Key)) })
	var out []string
	for _, e := range order {
		if total <= budget {
			break
		}
		if e.Busy {
			continue
		}
		out = append(out, e.Key)
		total -= held[e.Key]
	}
	return out
}
