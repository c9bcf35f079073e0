package guestops

import (
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
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
	shut map[string]bool     // by uid; guarded by mu
}

func newActivity() *activity { return &activity{seen: map[string]Activity{}, shut: map[string]bool{}} }

// touch begins or ends a use; false if none may begin now.
func (a *activity) touch(uid string, by int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if by > 0 && a.shut[uid] {
		return false
	}
	now := a.seen[uid]
	now.Last = time.Now()
	now.Open += by
	a.seen[uid] = now
	return true
}

// Begin counts a use of a life until the result is called, once or more often.
// Everything that a person or program does in an environment is one: a command
// while it runs, an attached session and a desktop stream while they are open,
// a file transfer, a computer action. Traffic on its ports is none. While the
// life is shut none begins.
func (s *Service) Begin(uid string) (end func(), err error) {
	if !s.activity.touch(uid, 1) {
		return nil, fleet.Errorf(fleet.CodeUnavailable, "the environment is being ended or paused, because nobody used it").
			With(fleet.DetailScope, "idle_timeout").With(fleet.DetailRemedy, "try again in a moment, and create another one if it is gone").With("retry_after", "1")
	}
	return sync.OnceFunc(func() { s.activity.touch(uid, -1) }), nil
}

// Shut lets no use of a life begin until the result is called, so that one that
// is to end for want of use is not taken up between the last look at its uses
// and its end. One shutter at a time.
func (s *Service) Shut(uid string) (open func()) {
	s.activity.mu.Lock()
	defer s.activity.mu.Unlock()
	s.activity.shut[uid] = true
	return func() {
		s.activity.mu.Lock()
		defer s.activity.mu.Unlock()
		delete(s.activity.shut, uid)
	}
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
