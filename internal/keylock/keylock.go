// Package keylock is a lock per key that may be held over I/O: those who wait
// for it obey a context, and tests in virtual time can see them wait.
package keylock

import (
	"context"
	"sync"
)

// Lock is a lock per key whose waiters give up with their context. A key
// that nobody holds or waits for costs nothing.
type Lock struct {
	mu   sync.Mutex
	held map[string]*hold
}

type hold struct {
	token chan struct{}
	users int
}

// Take waits for the key and returns what releases it.
func (k *Lock) Take(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	h := k.held[key]
	if h == nil {
		h = &hold{token: make(chan struct{}, 1)}
		if k.held == nil {
			k.held = map[string]*hold{}
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

func (k *Lock) leave(key string, h *hold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.users--; h.users == 0 {
		delete(k.held, key)
	}
}
