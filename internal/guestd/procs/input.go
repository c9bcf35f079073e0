package procs

import (
	"context"
	"io"
	"sync"

	"github.com/fusevm/fuse/internal/fleet"
)

// maxInput is how much input waits for a process, in bytes.
const maxInput = 256 << 10

// input is a process's standard input: bytes that callers add at an offset.
type input struct {
	turn chan struct{} // one sender at a time

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
	buf     []byte
	taken   int64
	eof     bool // nothing follows
	closed  bool // the process takes no more
}

func newInput() *input {
	return &input{turn: make(chan struct{}, 1), changed: make(chan struct{})}
}

func (in *input) changedLocked() {
	close(in.changed)
	in.changed = make(chan struct{})
}

// send adds data that begins at offset, and returns how much of the input was
// taken so far. What was taken before is skipped, so a repeat does no harm.
func (in *input) send(ctx context.Context, offset int64, data []byte, eof bool) (int64, error) {
	select {
	case in.turn <- struct{}{}:
		defer func() { <-in.turn }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	for first := true; ; first = false {
		in.mu.Lock()
		if first {
			if offset < 0 || offset > in.taken {
				defer in.mu.Unlock()
				return in.taken, fleet.Errorf(fleet.CodeConflict, "the input has been taken up to byte %d and cannot go on at %d", in.taken, offset).
					With(fleet.DetailUsage, itoa(in.taken)).With(fleet.DetailReason, "offset").With(fleet.DetailRemedy, "send from the offset that usage names")
			}
			data = data[min(in.taken-offset, int64(len(data))):]
		}
		taken, done := in.addLocked(&data, eof)
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

// addLocked takes as much of data as there is room for.
func (in *input) addLocked(data *[]byte, eof bool) (taken int64, done bool) {
	if in.closed || in.eof {
		*data = nil // falls away, as with a pipe whose reader has left
		return in.taken, true
	}
	if n := min(len(*data), maxInput-len(in.buf)); n > 0 {
		in.buf = append(in.buf, (*data)[:n]...)
		in.taken += int64(n)
		*data = (*data)[n:]
		in.changedLocked()
	}
	if len(*data) > 0 {
		return in.taken, false
	}
	if eof {
		in.eof = true
		in.changedLocked()
	}
	return in.taken, true
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
