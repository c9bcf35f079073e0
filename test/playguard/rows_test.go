package playguard

import (
	"testing"

	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/test/playguard/rig"
)

// row is one row of the fault table, or one field report.
type row struct {
	name  string
	run   func(w *world)
	quick bool // also in the fast run
	both  bool // it runs Compose: with each of them
	last  bool // it takes the daemon down, so those that do not come first
}

func all() []row {
	rows := append(append(append([]row(nil), blindRows...), deployRows...), append(rollRows, safetyRows...)...)
	var first, last []row
	for _, r := range rows {
		if r.last {
			last = append(last, r)
		} else {
			first = append(first, r)
		}
	}
	return append(first, last...)
}

// TestRows runs every row against a real host: what touches Compose with each
// of the two, everything else with one. The fast run has a selection with v1.
func TestRows(t *testing.T) {
	d := dockertest.Start(t)
	benches := map[rig.Flavour]*bench{rig.V1: newBench(t, d, rig.V1)}
	flavours := []rig.Flavour{rig.V1}
	if !testing.Short() {
		flavours = append(flavours, rig.V2)
		benches[rig.V2] = newBench(t, d, rig.V2)
	}
	var roots []string
	for _, b := range benches {
		roots = append(roots, b.host.Root)
	}
	around := rig.AddBystanders(t, d, roots...)
	for _, f := range flavours {
		b := benches[f]
		b.bystanders = around
		t.Run(string(f), func(t *testing.T) {
			for _, r := range all() {
				if testing.Short() && !r.quick || f == rig.V2 && !r.both {
					continue
				}
				t.Run(r.name, func(t *testing.T) {
					w := b.world(t)
					defer w.Clean()
					r.run(w)
					w.check()
				})
			}
		})
	}
}

// TestDiskFull gives a host little room and takes that.
func TestDiskFull(t *testing.T) {
	d := dockertest.StartSmall(t, 64<<20)
	b := newBench(t, d, rig.V1)
	b.bystanders = rig.AddBystanders(t, d, b.host.Root)
	t.Run("v1", func(t *testing.T) {
		w := b.world(t)
		defer w.Clean()
		diskFull(w)
		w.check()
	})
}
