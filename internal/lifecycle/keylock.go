package lifecycle

import (
	"context"
	"sync"
)

// keylock is a lock per key that is held over I/O: waiting obeys a context.
type keylock struct {
	mu    sync.Mutex
	locks map[string]*keyed // guarded by mu
}

type keyed struct {
	held chan struct{} // holds one token while locked
	refs int           // holders and waiters; guarded by keylock.mu
}

func newKeylock() *keylock { return &keylock{locks: map[string]*keyed{}} }

// lock waits for the key and returns its release, or ctx's cause.
func (k *keylock) lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	l := k.locks[key]
	if l == nil {
		l = &keyed{held: make(chan struct{}, 1)}
		k.locks[key] = l
	}
	l.refs++
	k.mu.Unlock()
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; k.release(key, l) }, nil
	case <-ctx.Done():
		k.release(key, l)
		return nil, context.Cause(ctx)
	}
}

func (k *keylock) release(key string, l *keyed) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.refs--; l.refs == 0 {
		delete(k.locks, key)
	}
}
