package notify

import (
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Bounds of messages that people send to try a route: they go out at once, to
// whatever address somebody gave.
const (
	mostTests  = 10 // of one owner
	testWindow = 10 * time.Minute
)

// tests remembers when owners tried their routes. It is this process's memory.
type tests struct {
	mu sync.Mutex
	at map[string][]time.Time
}

// take counts one more, or refuses it.
func (t *tests) take(owner string, now time.Time) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.at == nil {
		t.at = map[string][]time.Time{}
	}
	for o, list := range t.at {
		for len(list) > 0 && now.Sub(list[0]) >= testWindow {
			list = list[1:]
		}
		if t.at[o] = list; len(list) == 0 {
			delete(t.at, o)
		}
	}
	if len(t.at[owner]) >= mostTests {
		return fleet.Errorf(fleet.CodeQuotaExceeded, "routes of %s were tried %d times in the last %s", owner, mostTests, testWindow).
			With(fleet.DetailLimit, "10 in 10 minutes").With(fleet.DetailRemedy, "wait a few minutes")
	}
	t.at[owner] = append(t.at[owner], now)
	return nil
}
