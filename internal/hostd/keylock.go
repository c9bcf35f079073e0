package hostd

import (
	"context"
	"sync"
)

// keyLock is a lock per key whose waiters give up with their context. A key
// that nobody holds or waits for costs nothing.
type keyLock struct {
	mu   sync.Mutex
	held map[string]*keyHold
}

type keyHold struct {
	token chan struct{}
	users int
}

// lock waits for the key and returns what releases it.
func (k *keyLock) lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	h := k.held[key]
	if h == nil {
		h = &keyHold{token: make(chan struct{}, 1)}
		if k.held == nil {
			k.held = map[string]*keyHold{}
		}
		k.held[key] = h
	}
	h.users++
	k.mu.Unlock()

	select {
	case h.token <- struct{}{}:
		return func() { <-h.token; k.leave(key, h) }, nil
	case <-ctx.Done():
		k.leave(key, h)
		return nil, context.Cause(ctx)
	}
}

func (k *keyLock) leave(key string, h *keyHold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.users--; h.users == 0 {
		delete(k.held, key)
	}
}
