package guestops

import (
	"sync"
	"time"
)

// Activity is how an environment was last used. It is never stored: a restart
// of the server restarts every idle window.
type Activity struct {
	Last time.Time // when a use last began or ended
	Open int       // uses under way: commands, sessions, transfers
}

type activity struct {
	mu   sync.Mutex
	seen map[string]Activity // by uid; guarded by mu
}

func newActivity() *activity { return &activity{seen: map[string]Activity{}} }

func (a *activity) touch(uid string, by int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.seen[uid]
	now.Last = time.Now()
	now.Open += by
	a.seen[uid] = now
}

// Begin counts a use of a life until the result is called, once or more often.
// Everything that a person or program does in an environment is one: a command
// while it runs, an attached session and a desktop stream while they are open,
// a file transfer, a computer action. Traffic on its ports is none.
func (s *Service) Begin(uid string) (end func()) {
	s.activity.touch(uid, 1)
	return sync.OnceFunc(func() { s.activity.touch(uid, -1) })
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
		if a.Open == 0 && !alive(uid) {
			delete(s.activity.seen, uid)
		}
	}
}
