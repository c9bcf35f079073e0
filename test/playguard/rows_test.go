package playguard

import (
	"slices"
	"sync"
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
	alone bool // it counts what this process has, so nothing runs beside it
	long  bool // it takes longer than most, so it begins early
}

func all() []row {
	return slices.Concat(blindRows, deployRows, rollRows, safetyRows, sweepRows, endRows)
}

// turns is how often this process ran the rows.
var turns int

// TestRows runs every row against a real host: what touches Compose with each
// of the two, everything else with v2, and in every second turn of -count with v1.
// The fast run has a selection with v1. Rows run beside each other, each on a
// station of its own.
func TestRows(t *testing.T) {
	flavours, other := []rig.Flavour{rig.V1}, rig.V1
	if !testing.Short() {
		flavours = append(flavours, rig.V2)
		other = flavours[(turns+1)%len(flavours)]
		turns++
	}
	p := &pool{t: t, flavours: flavours}
	for _, f := range flavours {
		t.Run(string(f), func(t *testing.T) {
			waits := false
			for _, r := range order(all()) {
				if testing.Short() && !r.quick || f != other && !r.both {
					continue
				}
				if !r.alone && !waits && !testing.Short() { // until the other one's have run that want to be alone
					waits = true
					t.Parallel()
				}
				t.Run(r.name, func(t *testing.T) {
					if waits { // few rows do not pay for a second daemon
						t.Parallel()
					}
					p.run(t, f, r)
				})
			}
		})
	}
}

// order has those first that run alone, and then, since of what waits for its turn
// the last begins first, the long ones at the end.
func order(rows []row) []row {
	rank := func(r row) int {
		switch {
		case r.alone:
			return 0
		case r.long:
			return 2
		}
		return 1
	}
	slices.SortStableFunc(rows, func(a, b row) int { return rank(a) - rank(b) })
	return rows
}

// pool has the stations of a run: as many as there are rows at once.
type pool struct {
	t        *testing.T
	flavours []rig.Flavour
	mu       sync.Mutex
	free     []*station
}

// run runs a row on a free station.
func (p *pool) run(t *testing.T, f rig.Flavour, r row) {
	t.Helper()
	s := p.take()
	defer func() {
		if !t.Failed() { // what a failure left is nobody else's
			p.put(s)
		}
	}()
	w := s.benches[f].world(t)
	defer w.Clean()
	r.run(w)
	w.check()
}

func (p *pool) take() *station {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		s := p.free[n-1]
		p.free = p.free[:n-1]
		p.mu.Unlock()
		return s
	}
	p.mu.Unlock()
	return newStation(p.t, dockertest.Start(p.t), p.flavours...)
}

func (p *pool) put(s *station) {
	if s.bystanders.Disturbed() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, s)
}

// TestDiskFull gives a host little room and takes that.
func TestDiskFull(t *testing.T) {
	s := newStation(t, dockertest.StartSmall(t, 64<<20), rig.V2)
	t.Run(string(rig.V2), func(t *testing.T) {
		w := s.benches[rig.V2].world(t)
		defer w.Clean()
		diskFull(w)
		w.check()
	})
}
