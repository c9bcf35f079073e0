// Package tailbuf keeps the end of what is written.
package tailbuf

import (
	"bytes"
	"sync"
)

// Buffer keeps the last Limit bytes written to it. Two streams may write at
// once.
type Buffer struct {
	Limit int

	mu  sync.Mutex
	buf []byte // at most 2*Limit
	cut bool
}

// Write implements io.Writer.
func (t *Buffer) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p[max(0, len(p)-t.Limit):]...)
	t.cut = t.cut || len(p) > t.Limit
	if len(t.buf) >= 2*t.Limit {
		t.trim()
	}
	return len(p), nil
}

func (t *Buffer) trim() {
	if over := len(t.buf) - t.Limit; over > 0 {
		t.buf = t.buf[:copy(t.buf, t.buf[over:])]
		t.cut = true
	}
}

// Bytes is a copy of what is kept; cut says that more had been written.
func (t *Buffer) Bytes() (out []byte, cut bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.trim()
	return bytes.Clone(t.buf), t.cut
}
