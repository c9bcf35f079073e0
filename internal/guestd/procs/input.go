package procs

import (
	"context"
	"io"
	"slices"
	"sync"

	"github.com/fusevm/fuse/internal/fleet"
)

const (
	// maxInput is how much input waits for a process, in bytes.
	maxInput = 256 << 10
	// maxWriters is of how many writers a process knows what they wrote: those
	// that wrote last.
	maxWriters = 64
	// maxWriterName bounds a writer's name, in bytes.
	maxWriterName = 64
)

// input is a process's standard input: bytes that callers add at an offset of
// it all or, with a name, of what they wrote themselves.
type input struct {
	turn chan struct{} // one sender at a time

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
	buf     []byte
	taken   int64
	writers []writer // the last to have written comes last
	eof     bool     // nothing follows
	closed  bool     // the process takes no more
}

// writer is one of several that add to an input.
type writer struct {
	name  string
	taken int64 // of what it wrote
}

func newInput() *input {
	return &input{turn: make(chan struct{}, 1), changed: make(chan struct{})}
}

func (in *input) changedLocked() {
	close(in.changed)
	in.changed = make(chan struct{})
}

// send adds data that begins at offset, and returns how much was taken so far:
// of the input or, if name is not empty, of what that writer wrote. What was
// taken before is skipped, so a repeat does no harm.
func (in *input) send(ctx context.Context, name string, offset int64, data []byte, eof bool) (int64, error) {
	if len(name) > maxWriterName {
		return 0, fleet.Invalid("writer", itoa(maxWriterName)+" bytes", "take a shorter name", "has %d bytes", len(name))
	}
	if len(data) == 0 && !eof { // a question, which waits for no sender
		return in.skip(name, offset, &data)
	}
	select {
	case in.turn <- struct{}{}:
		defer func() { <-in.turn }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if taken, err := in.skip(name, offset, &data); err != nil {
		return taken, err
	}
	for {
		in.mu.Lock()
		taken, done := in.addLocked(name, &data, eof)
		wait := in.changed
		in.mu.Unlock()
		if done {
			return taken, nil
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return taken, context.Cause(ctx)
		}
	}
}

// skip takes from data what was taken before.
func (in *input) skip(name string, offset int64, data *[]byte) (int64, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	taken := in.takenLocked(name)
	if in.closed {
		return taken, nil
	}
	if offset < 0 || offset > taken {
		return taken, fleet.Errorf(fleet.CodeConflict, "the input has been taken up to byte %d and cannot go on at %d", taken, offset).
			With(fleet.DetailUsage, itoa(taken)).With(fleet.DetailReason, "offset").With(fleet.DetailRemedy, "send from the offset that usage names")
	}
	*data = (*data)[min(taken-offset, int64(len(*data))):]
	return taken, nil
}

func (in *input) takenLocked(name string) int64 {
	if name == "" {
		return in.taken
	}
	if i := in.writerLocked(name); i >= 0 {
		return in.writers[i].taken
	}
	return 0
}

func (in *input) writerLocked(name string) int {
	return slices.IndexFunc(in.writers, func(w writer) bool { return w.name == name })
}

// wroteLocked counts n bytes more.
func (in *input) wroteLocked(name string, n int) {
	in.taken += int64(n)
	if name == "" {
		return
	}
	w := writer{name: name}
	if i := in.writerLocked(name); i >= 0 {
		w = in.writers[i]
		in.writers = slices.Delete(in.writers, i, i+1)
	} else if len(in.writers) == maxWriters {
		in.writers = slices.Delete(in.writers, 0, 1)
	}
	w.taken += int64(n)
	in.writers = append(in.writers, w)
}

// addLocked takes as much of data as there is room for.
func (in *input) addLocked(name string, data *[]byte, eof bool) (taken int64, done bool) {
	if in.closed || in.eof {
		*data = nil // falls away, as with a pipe whose reader has left
		return in.takenLocked(name), true
	}
	if n := min(len(*data), maxInput-len(in.buf)); n > 0 {
		in.buf = append(in.buf, (*data)[:n]...)
		in.wroteLocked(name, n)
		*data = (*data)[n:]
		in.changedLocked()
	}
	if len(*data) > 0 {
		return in.takenLocked(name), false
	}
	if eof {
		in.eof = true
		in.changedLocked()
	}
	return in.takenLocked(name), true
}

func (in *input) at() int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.taken
}

// Read implements io.Reader for the process.
func (in *input) Read(p []byte) (int, error) {
	for {
		in.mu.Lock()
		switch {
		case in.closed:
			in.mu.Unlock()
			return 0, io.ErrClosedPipe
		case len(in.buf) > 0:
			n := copy(p, in.buf)
			in.buf = in.buf[:copy(in.buf, in.buf[n:])]
			in.changedLocked()
			in.mu.Unlock()
			return n, nil
		case in.eof:
			in.mu.Unlock()
			return 0, io.EOF
		}
		wait := in.changed
		in.mu.Unlock()
		<-wait
	}
}

// Close ends a Read in progress and lets later input fall away.
func (in *input) Close() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.closed {
		in.closed, in.buf = true, nil
		in.changedLocked()
	}
	return nil
}
