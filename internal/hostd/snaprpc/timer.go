package snaprpc

import (
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// timer notes when steps begin.
type timer struct {
	told func(name string) // may be nil

	mu    sync.Mutex
	names []string
	at    []time.Time
}

func (t *timer) step(name string) {
	if t.told != nil {
		t.told(name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.names, t.at = append(t.names, name), append(t.at, time.Now())
}

func (t *timer) times() []fleet.StepTime {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]fleet.StepTime, len(t.names))
	for i := range t.names {
		end := time.Now()
		if i+1 < len(t.at) {
			end = t.at[i+1]
		}
		out[i] = fleet.StepTime{Step: t.names[i], Took: end.Sub(t.at[i])}
	}
	return out
}
