package cli

import (
	"fmt"
	"sync"
	"time"
)

// spinner shows elapsed time on a terminal while a request is under way.
type spinner struct {
	done chan struct{}
	wg   sync.WaitGroup
}

// spin starts a spinner, or one that shows nothing when stderr is no terminal.
func (a *app) spin(what string) *spinner {
	s := &spinner{done: make(chan struct{})}
	if a.quiet || !isTerminal(a.Streams.Err) {
		return s
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		start := time.Now()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-s.done:
				fmt.Fprint(a.Streams.Err, "\r\033[K")
				return
			case <-tick.C:
				fmt.Fprintf(a.Streams.Err, "\r%s … %.1f s", what, time.Since(start).Seconds())
			}
		}
	}()
	return s
}

func (s *spinner) stop() {
	close(s.done)
	s.wg.Wait()
}
