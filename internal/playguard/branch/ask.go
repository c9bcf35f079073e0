package branch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/url"
	"slices"
	"time"

	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
)

// Bounds of asking servers.
const (
	// batchTime is for how long a batch goes on to another server; what it leaves
	// is the first of the next.
	batchTime = 45 * time.Second
	// slowAfter is when a failure is one that others should not wait behind.
	slowAfter = 5 * time.Second
)

// lane is where servers are asked one after the other. What somebody waits for has
// a lane of its own, so that it does not wait for what only is due.
type lane struct {
	marquee model.MarqueeID
	waited  bool
}

// ask asks the servers of playgrounds that are due, in the background.
func (f *Follower) ask(t *loop.Turn, due []records.Playground) {
	lanes := map[bool][]records.Playground{}
	for _, p := range due {
		waited := f.Heard(p.ID).asked
		lanes[waited] = append(lanes[waited], p)
	}
	for waited, rows := range lanes {
		f.batch(t, lane{t.In.Marquee.ID, waited}, order(t, rows, f.Heard))
	}
}

// order puts those first whose servers answer, and of these the ones that were
// asked longest ago.
func order(t *loop.Turn, due []records.Playground, heard func(model.PlaygroundID) Heard) []records.Playground {
	slow := map[string]bool{}
	for _, row := range t.Rows {
		if heard(row.ID).slow {
			slow[server(row)] = true
		}
	}
	rank := func(p *records.Playground) (last int) {
		if slow[server(p)] {
			last += 2
		}
		if heard(p.ID).Failures > 0 {
			last++
		}
		return last
	}
	slices.SortStableFunc(due, func(a, b records.Playground) int {
		return cmp.Or(cmp.Compare(rank(&a), rank(&b)), heard(a.ID).At.Compare(heard(b.ID).At))
	})
	return due
}

// server is where a playground's repository is.
func server(p *records.Playground) string {
	u, err := url.Parse(p.Source.Repository)
	if err != nil {
		return p.Source.Repository
	}
	return u.Host
}

// batch asks the servers of playgrounds, one after the other, unless that is under
// way in the lane. A server that fails slowly is not asked again in a batch. News
// has the marquee looked at, and so has what somebody waits for by then.
func (f *Follower) batch(t *loop.Turn, in lane, due []records.Playground) {
	f.mu.Lock()
	begin := len(due) > 0 && !f.asking[in]
	if begin {
		f.asking[in] = true
	}
	f.mu.Unlock()
	if !begin {
		return
	}
	t.Background(func(ctx context.Context) {
		news, slow := false, map[string]bool{}
		for until := time.Now().Add(batchTime); len(due) > 0 && ctx.Err() == nil && time.Now().Before(until); due = due[1:] {
			p := due[0]
			if slow[server(&p)] {
				continue
			}
			news = f.askOne(ctx, p) || news
			slow[server(&p)] = f.Heard(p.ID).slow
		}
		f.mu.Lock()
		delete(f.asking, in)
		f.mu.Unlock()
		if ctx.Err() == nil && (news || in.waited && waitedFor(t, f.Heard)) {
			t.Kick()
		}
	})
}

// waitedFor reports whether somebody waits for a playground of the marquee.
func waitedFor(t *loop.Turn, heard func(model.PlaygroundID) Heard) bool {
	for id := range t.Rows {
		if heard(id).asked {
			return true
		}
	}
	return false
}

// askOne asks one server and reports whether it said something new.
func (f *Follower) askOne(ctx context.Context, p records.Playground) (news bool) {
	var m records.Marquee
	var payload []byte
	before, began := f.begin(p.ID), time.Now()
	err := f.Store.View(func(tx *state.ReadTx) (err error) {
		row, ok := records.Playgrounds.Get(tx, string(p.ID))
		host, found := records.Marquees.Get(tx, string(p.Marquee))
		if !ok || !found {
			return records.ErrMoved
		}
		if err := work.InUse(tx, p.Marquee); err != nil {
			return err
		}
		m = *host
		payload, err = f.payload(tx, row, nil)
		return err
	})
	if errors.Is(err, records.ErrMoved) { // nothing is to be asked there now
		return false
	}
	now := Heard{At: time.Now(), began: began}
	if err == nil {
		now.Head, err = f.Host(m).Remote(ctx, payload)
		now.Gone = err == nil && now.Head == ""
	}
	result := "ok"
	if err != nil {
		result = "failed"
		now.Head, now.Gone, now.Failures, now.Why = before.Head, before.Gone, before.Failures+1, err.Error()
		now.slow = time.Since(began) >= slowAfter
		f.Logger.Info("a branch could not be asked for", slog.String("playground", string(p.ID)), slog.Int("failures", now.Failures), slog.Any("error", err))
	}
	f.Followed("ask", result)
	f.mu.Lock()
	defer f.mu.Unlock()
	is := f.heard[p.ID]
	if is.began.After(began) { // the other lane asked later, and was answered first
		return false
	}
	if is.asked { // meanwhile, and the answer may be older than that
		now.At, now.asked = time.Time{}, true
	}
	f.heard[p.ID] = now
	return now.Head != before.Head || now.Gone != before.Gone || (now.Failures >= tellAfter) != (before.Failures >= tellAfter)
}

// begin returns what was heard of a playground whose server is asked now.
func (f *Follower) begin(id model.PlaygroundID) Heard {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.heard[id]
	if h.asked {
		h.asked = false
		f.heard[id] = h
	}
	return h
}
