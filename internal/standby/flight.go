package standby

import "sync"

// flight counts calls, so that their end can be waited for.
type flight struct {
	mu     sync.Mutex
	n      int
	closed bool
	empty  chan struct{} // closed when closed and n is zero
}

func newFlight() *flight { return &flight{empty: make(chan struct{})} }

// enter counts one in; false: it is too late.
func (f *flight) enter() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.n++
	return true
}

func (f *flight) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n--; f.n == 0 && f.closed {
		close(f.empty)
	}
}

// close lets nobody in any more; the channel tells when all have left.
func (f *flight) close() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		if f.closed = true; f.n == 0 {
			close(f.empty)
		}
	}
	return f.empty
}
