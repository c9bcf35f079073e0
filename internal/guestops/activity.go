package guestops

import (
	"sync"
	"time"
)

// Activity is how an environment was last used. It is never stored.
type Activity struct {
	Last    time.Time // when a command last began or ended
	Running int       // commands that run now
}

type activity struct {
	mu   sync.Mutex
	seen map[string]Activity // by uid; guarded by mu
}

func newActivity() *activity { return &activity{seen: map[string]Activity{}} }

func (a *activity) begin(uid string) { a.touch(uid, 1) }
func (a *activity) end(uid string)   { a.touch(uid, -1) }

func (a *activity) touch(uid string, by int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.seen[uid]
	now.Last = time.Now()
	now.Running += by
	a.seen[uid] = now
}

// Activity says how a life was last used; ok is false if not at all since this
// process began.
func (s *Service) Activity(uid string) (a Activity, ok bool) {
	s.activity.mu.Lock()
	defer s.activity.mu.Unlock()
	a, ok = s.activity.seen[uid]
	return a, ok
}

// Forget drops what is known of lives that are over. The loop calls it, so
// that the memory of ended lives stays bounded by one cycle's.
func (s *Service) Forget(alive func(uid string) bool) {
	s.activity.mu.Lock()
	defer s.activity.mu.Unlock()
	for uid, a := range s.activity.seen {
		if a.Running == 0 && !alive(uid) {
			delete(s.activity.seen, uid)
		}
	}
}
