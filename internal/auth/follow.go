package auth

import (
	"context"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// followEvery is how often credentials behind open streams are looked at
// again, and so how long a stream outlives its credential at most.
const followEvery = time.Second

// credential is what a principal showed that can come to an end before the
// process does.
type credential struct {
	gate    *Gate
	session string // cookie; empty: the key itself was shown
}

// Follow returns a context that also ends when the principal's key is revoked
// or expires, or its session is logged out, within a second or so; its cause is
// then an unauthorized error. For answers that go on for long. The stop
// function has to be called.
func (p Principal) Follow(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if p.held == nil {
		return ctx, func() { cancel(nil) }
	}
	f := &follower{principal: p, end: cancel}
	p.held.gate.followers.add(f)
	return ctx, func() {
		p.held.gate.followers.drop(f)
		cancel(nil)
	}
}

// still returns why the principal's credential is over, if it is.
func (p Principal) still() error {
	g := p.held.gate
	if p.held.session != "" {
		_, err := g.bySession(p.held.session)
		return err
	}
	key, ok := g.keys.Key(p.KeyID)
	if !ok {
		return errOver(p.KeyID, "gone")
	}
	if why, ok := key.Usable(time.Now()); !ok {
		return errOver(p.KeyID, why)
	}
	return nil
}

type follower struct {
	principal Principal
	end       context.CancelCauseFunc
}

// followers are the open streams of principals whose credential can end. One
// goroutine looks after all of them, and is there only while there are some.
type followers struct {
	mu   sync.Mutex
	open map[*follower]struct{}
	stop chan struct{} // of the goroutine; nil: there is none
}

func (fs *followers) add(f *follower) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.open == nil {
		fs.open = map[*follower]struct{}{}
	}
	fs.open[f] = struct{}{}
	if fs.stop == nil {
		fs.stop = make(chan struct{})
		go fs.run(fs.stop)
	}
}

func (fs *followers) drop(f *follower) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.open, f)
	if len(fs.open) == 0 && fs.stop != nil {
		close(fs.stop)
		fs.stop = nil
	}
}

func (fs *followers) run(stop chan struct{}) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for _, f := range fs.list() {
			if err := f.principal.still(); err != nil && fleet.CodeOf(err) == fleet.CodeUnauthorized {
				fs.drop(f)
				f.end(err)
			}
		}
	}
}

func (fs *followers) list() []*follower {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	out := make([]*follower, 0, len(fs.open))
	for f := range fs.open {
		out = append(out, f)
	}
	return out
}
