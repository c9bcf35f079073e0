package converge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/tracing"
)

// answer is one look, with the revisions that frame it.
type answer struct {
	host  string
	obs   fleet.Observation
	heard uint64    // the state's revision read after the answer had come
	tried time.Time // zero: its turn did not come
}

// sight is what the loop remembers of looking at a host.
type sight struct {
	answered bool      // the last time
	tried    time.Time // the last time
	complete bool      // seen completely at least once
}

func (s sight) after(a answer) sight {
	if !a.tried.IsZero() {
		s.tried = a.tried
		s.answered = a.obs.Quality() != fleet.Unseen
	}
	s.complete = s.complete || a.obs.Quality() == fleet.Complete
	return s
}

// lookAll looks at all hosts, at most MaxLooks at a time, and sends each answer
// as it comes; the channel is closed after the last, and the caller takes them
// all. Hosts that answered the
// last time go first and have the full deadline. The others share what is left
// of the budget, so that many dead ones cannot keep a live one from its turn.
func (l *eyes) lookAll(ctx context.Context, hosts []*fleet.Host, budget time.Duration, sights map[string]sight) <-chan answer {
	ends := time.Now().Add(budget)
	hosts = slices.SortedFunc(slices.Values(hosts), func(a, b *fleet.Host) int {
		x, y := sights[a.ID], sights[b.ID]
		if x.answered != y.answered {
			return map[bool]int{true: -1, false: 1}[x.answered]
		}
		return cmp.Or(x.tried.Compare(y.tried), cmp.Compare(a.ID, b.ID))
	})
	queue := make(chan *fleet.Host, len(hosts))
	for _, h := range hosts {
		queue <- h
	}
	close(queue)
	answers := make(chan answer, len(hosts))
	ctx, cancel := context.WithTimeoutCause(ctx, budget, errNoTurn)
	trusted := map[string]bool{}
	for id, s := range sights {
		trusted[id] = s.answered
	}
	workers := min(l.cfg.MaxLooks, len(hosts))
	var looking sync.WaitGroup
	for range workers {
		looking.Go(func() {
			for h := range queue {
				deadline := l.cfg.HostDeadline
				if rounds := len(queue)/workers + 1; !trusted[h.ID] {
					deadline = min(deadline, time.Until(ends)/time.Duration(rounds))
				}
				answers <- l.look(ctx, *h, deadline)
			}
		})
	}
	go func() { // over when the channel is closed, which the caller awaits
		looking.Wait()
		cancel()
		close(answers)
	}()
	return answers
}

var errNoTurn = errors.New("this cycle's time for looks was over")

// look looks at one host. The revision is read here, before anything is sent,
// whatever the looker notes itself.
func (l *eyes) look(ctx context.Context, host fleet.Host, deadline time.Duration) answer {
	a := answer{host: host.ID}
	before, _ := l.cfg.Store.Head()
	began := time.Now()
	mark := fleet.Look{HostID: host.ID, Revision: before, At: began}
	if ctx.Err() != nil {
		a.obs = fleet.NotSeen(mark, context.Cause(ctx).Error())
	} else {
		a.tried = began
		ctx, cancel := context.WithTimeout(ctx, deadline)
		ctx, span := tracing.Start(ctx, "look")
		a.obs = l.cfg.Looker.Look(ctx, host)
		cancel()
		span.Set(tracing.HostID, host.ID)
		span.Set(tracing.Result, a.obs.Quality().String())
		span.End(nil)
	}
	a.obs.Revision = before
	a.obs.ID = cmp.Or(a.obs.ID, fmt.Sprintf("%s@%d", host.ID, began.UnixMilli()))
	a.heard, _ = l.cfg.Store.Head()
	return a
}
