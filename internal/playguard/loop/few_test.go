package loop_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/rescan"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
)

// Markers that a host does not take wait longer and longer, and those behind them
// are written meanwhile; one that is to say something else is tried at once.
func TestMarksThatFailAreNotInTheWay(t *testing.T) {
	bubble(t, 1, func(w *world) {
		l := w.lead(1, rescan.Phase)
		defer l.stop()
		s := w.sims["m0"]
		var all []model.PlaygroundID
		for i := range 16 {
			id := model.PlaygroundID(fmt.Sprintf("p%02d", i))
			all = append(all, id)
			w.ask(l, "m0", id, version("1"))
		}
		pass(8 * time.Minute)
		ends := func(list []model.PlaygroundID, at time.Time) {
			w.update(func(tx *state.Tx) error {
				for _, id := range list {
					row, _ := records.Playgrounds.Get(tx, string(id))
					p := *row
					p.Expiry = model.Until(at, tx.Now())
					if err := records.PutPlayground(tx, p); err != nil {
						return err
					}
				}
				return nil
			})
		}
		stuck, rest := all[:8], all[8:]
		s.set(func(s *sim) {
			clear(s.marked)
			for _, id := range stuck {
				s.closed[id] = true
			}
		})
		at := time.Now().Add(100 * time.Hour)
		ends(all, at)
		tried := func(list []model.PlaygroundID) (n []int) {
			s.set(func(s *sim) {
				for _, id := range list {
					n = append(n, s.marked[id])
				}
			})
			return n
		}
		pass(5 * time.Minute)
		if n := tried(rest); slices.Min(n) != 1 || slices.Max(n) != 1 {
			t.Errorf("behind those that fail: tried %v times, want once each", n)
		}
		pass(100 * time.Minute)
		if n := tried(stuck); slices.Min(n) < 5 || slices.Max(n) > 9 {
			t.Errorf("those that fail: tried %v times in 105 minutes", n)
		}
		pass(10 * time.Minute)
		before := tried(stuck[:1])[0]
		s.set(func(s *sim) { clear(s.closed) })
		ends(stuck[:1], at.Add(time.Hour))
		pass(3 * time.Minute)
		if n := tried(stuck[:1])[0]; n != before+1 {
			t.Errorf("its end was changed: tried %d times more, want once", n-before)
		}
		pass(35 * time.Minute)
		after := tried(all)
		pass(30 * time.Minute)
		if n := tried(all); !slices.Equal(n, after) {
			t.Errorf("every marker says what it should, and they are written on: %v, then %v", after, n)
		}
	})
}

// No more of a chore is under way at once than may be, however slow a host is.
func TestAChoreStaysFew(t *testing.T) {
	bubble(t, 1, func(w *world) {
		c := newCounter()
		l := w.lead(1, func(*work.Worker) loop.Phase { return c.phase(3, 10*time.Minute) })
		defer l.stop()
		for i := range 9 {
			w.ask(l, "m0", model.PlaygroundID(fmt.Sprintf("p%d", i)), version("1"))
		}
		pass(time.Hour)
		if c.most != 3 || len(c.done) != 9 || c.left == 0 {
			t.Errorf("%d at once, %d done, %d were left at most", c.most, len(c.done), c.left)
		}
	})
}

// counter is a chore that takes its time, once on each playground.
type counter struct {
	mu         sync.Mutex
	done       map[model.PlaygroundID]bool
	works      int
	most, left int
}

func newCounter() *counter { return &counter{done: map[model.PlaygroundID]bool{}} }

func (c *counter) phase(most int, takes time.Duration) loop.Phase {
	return loop.Phase{Name: "count", Run: func(_ context.Context, t *loop.Turn) error {
		var owed []loop.Owed
		c.mu.Lock()
		for _, row := range t.Free() {
			if row.State == model.StateRunning && !c.done[row.ID] {
				owed = append(owed, loop.Owed{Row: row})
			}
		}
		c.mu.Unlock()
		left := t.Few(loop.Chore{Name: "count", Most: most, First: time.Minute, Last: time.Hour, Do: func(ctx context.Context, row records.Playground) (bool, error) {
			c.count(1)
			defer c.count(-1)
			select {
			case <-time.After(takes):
			case <-ctx.Done():
				return false, context.Cause(ctx)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.done[row.ID] = true
			return true, nil
		}}, owed)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.left = max(c.left, left)
		return nil
	}}
}

func (c *counter) count(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.works += n
	c.most = max(c.most, c.works)
}
