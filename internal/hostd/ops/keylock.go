// Package ops is what the host agent's operations are made of: flights that go
// on when their callers leave, locks by key, and slots.
package ops

import (
	"context"
	"sync"
)

// KeyLock is a lock per key whose waiters give up with their context. A key
// that nobody holds or waits for costs nothing.
type KeyLock struct {
	mu   sync.Mutex
	held map[string]*keyHold
}

type keyHold struct {
	token chan struct{}
	users int
}

// Lock waits for the key and returns what releases it.
func (k *KeyLock) Lock(ctx context.Context, key string) (unlock func(), err error) {
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

func (k *KeyLock) leave(key string, h *keyHold) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h.users--; h.users == 0 {
		delete(k.held, key)
	}
}
