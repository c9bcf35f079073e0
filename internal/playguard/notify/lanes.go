package notify

import (
	"sync"
	"time"
)

// Bounds of what is sent at a time.
const (
	atOnce   = 16 // routes
	perOwner = 2  // routes of one owner
)

// lanes are the routes that are being sent to. One goroutine begins them.
type lanes struct {
	sync.WaitGroup
	mu     sync.Mutex
	busy   map[string]bool // routes
	owners map[string]int
	rests  map[string]time.Time
}

// free tells which routes are not being sent to now.
func (l *lanes) free() func(route string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	busy := make(map[string]bool, len(l.busy))
	for r := range l.busy {
		busy[r] = true
	}
	return func(route string) bool { return !busy[route] }
}

// rest is until when a route is left alone.
func (l *lanes) rest(route string) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rests[route]
}

// begin runs do for a route if there is room, and done after it. What it returns
// is until when the route is to be left alone.
func (l *lanes) begin(r Route, do func() time.Time, done func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy == nil {
		l.busy, l.owners, l.rests = map[string]bool{}, map[string]int{}, map[string]time.Time{}
	}
	if len(l.busy) >= atOnce || l.owners[r.Owner] >= perOwner {
		return
	}
	l.busy[r.ID] = true
	l.owners[r.Owner]++
	l.Go(func() {
		defer done()
		rest := do()
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.busy, r.ID)
		if l.owners[r.Owner]--; l.owners[r.Owner] == 0 {
			delete(l.owners, r.Owner)
		}
		if delete(l.rests, r.ID); !rest.IsZero() {
			l.rests[r.ID] = rest
		}
	})
}
