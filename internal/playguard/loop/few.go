package loop

import (
	"context"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/work"
)

// Chore is work that playgrounds are owed now and then, of which a marquee is
// asked a little at a time.
type Chore struct {
	Name string
	Most int // under way at once
	// First and Last are how long one waits on which it failed: twice as long each
	// time, up to Last.
	First, Last time.Duration
	// Again asks for a look when one is done.
	Again bool
	// Do says whether it is done. An error is why nothing is known of it.
	Do func(ctx context.Context, row records.Playground) (done bool, err error)
}

// Owed is a playground with what it is owed. Of one that is owed something else
// than what failed, the failures count no more.
type Owed struct {
	Row  *records.Playground
	What string
}

// tried is what is remembered of a chore on a playground that is under way or
// failed.
type tried struct {
	what   string
	failed int // in a row
	last   time.Time
	works  bool
}

// Few begins a chore on as many as it may, those first that waited longest. One on
// which it fails waits, and takes no place of the others meanwhile. It returns how
// many are due and were not begun.
func (t *Turn) Few(c Chore, owed []Owed) (left int) {
	a := t.actor
	a.mu.Lock()
	mine := a.tried[c.Name]
	if mine == nil {
		mine = map[model.PlaygroundID]tried{}
		a.tried[c.Name] = mine
	}
	room := c.Most
	for id, was := range mine {
		still := slices.ContainsFunc(owed, func(o Owed) bool { return o.Row.ID == id })
		switch {
		case was.works:
			room--
		case t.Rows[id] == nil, !still && t.In.Now.Sub(was.last) >= c.Last:
			delete(mine, id)
		}
	}
	var due []Owed
	for _, o := range owed {
		was := mine[o.Row.ID]
		if was.works || was.what == o.What && was.failed > 0 && t.In.Now.Sub(was.last) < model.Backoff(was.failed-1, c.First, c.Last) {
			continue
		}
		due = append(due, o)
	}
	slices.SortStableFunc(due, func(x, y Owed) int { return mine[x.Row.ID].last.Compare(mine[y.Row.ID].last) })
	a.mu.Unlock()
	begin := due[:min(max(room, 0), len(due))]
	for _, o := range begin {
		row := *o.Row
		t.Start(row.ID, func(ctx context.Context) (bool, error) {
			a.trying(c.Name, row.ID, o.What)
			done, err := c.Do(ctx, row)
			a.tries(c.Name, row.ID, done, err)
			return c.Again, err
		})
	}
	return len(due) - len(begin)
}

// Under reports whether a chore is under way on a playground.
func (t *Turn) Under(chore string, id model.PlaygroundID) bool {
	t.actor.mu.Lock()
	defer t.actor.mu.Unlock()
	return t.actor.tried[chore][id].works
}

func (a *actor) trying(chore string, id model.PlaygroundID, what string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.tried[chore][id]
	if was.what != what {
		was.failed = 0
	}
	was.what, was.works = what, true
	a.tried[chore][id] = was
}

// tries remembers how a try ended. A record that changed meanwhile is no failure.
func (a *actor) tries(chore string, id model.PlaygroundID, done bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.tried[chore][id]
	was.works, was.last = false, time.Now()
	switch level, ordinary := work.Ordinary(err); {
	case err == nil && done:
		delete(a.tried[chore], id)
		return
	case err == nil, !ordinary, level > 0: // warned of: it is not known what became of it
		was.failed++
	}
	a.tried[chore][id] = was
}
