// Package uid makes the ULIDs that name lives, batches and operations. Within
// a process they rise strictly, also when the wall clock steps back.
package uid

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

var shared = &maker{entropy: ulid.Monotonic(rand.Reader, 0)}

type maker struct {
	mu      sync.Mutex
	ms      uint64
	entropy ulid.MonotonicReader
}

// New returns a ULID of 26 characters, greater than every one this process
// made before. It is safe for concurrent use.
func New() string { return shared.next(time.Now()) }

// Valid reports whether s is a ULID in its canonical spelling.
func Valid(s string) bool {
	id, err := ulid.ParseStrict(s)
	return err == nil && id.String() == s
}

func (m *maker) next(now time.Time) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ms = max(m.ms, ulid.Timestamp(now))
	id, err := ulid.New(m.ms, m.entropy)
	if err != nil { // the entropy of this millisecond is used up
		m.ms++
		id = ulid.MustNew(m.ms, m.entropy)
	}
	return id.String()
}
