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
	mu      sync.Mutex
	open    map[*follower]struct{}
	running bool
}

func (fs *followers) add(f *follower) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.open == nil {
		fs.open = map[*follower]struct{}{}
	}
	fs.open[f] = struct{}{}
	if !fs.running {
		fs.running = true
		go fs.run()
	}
}

func (fs *followers) drop(f *follower) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.open, f)
}

func (fs *followers) run() {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	for range tick.C {
		open := fs.list()
		if open == nil {
			return
		}
		for _, f := range open {
			if err := f.principal.still(); err != nil && fleet.CodeOf(err) == fleet.CodeUnauthorized {
				fs.drop(f)
				f.end(err)
			}
		}
	}
}

// list copies what is open; with nothing left it ends the goroutine.
func (fs *followers) list() []*follower {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if len(fs.open) == 0 {
		fs.running = false
		return nil
	}
	out := make([]*follower, 0, len(fs.open))
	for f := range fs.open {
		out = append(out, f)
	}
	return out
}
