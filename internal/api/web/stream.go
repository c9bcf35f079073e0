package web

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

const (
	// KeepAlive is how often a quiet stream says that it is still there.
	KeepAlive = 15 * time.Second
	// streamWriteTimeout ends a stream whose reader takes nothing for so long.
	streamWriteTimeout = 30 * time.Second
)

// KeepAliveComment is what a quiet stream says.
var KeepAliveComment = []byte(": keepalive\n\n")

// DetailRetryAfter is a number of seconds; it becomes the header Retry-After.
const DetailRetryAfter = "retry_after"

// Streams bounds the event streams of a server and ends them together.
type Streams struct {
	ctx   context.Context
	end   context.CancelFunc
	slots chan struct{} // one entry for each that is open
}

// NewStreams makes room for most streams at a time.
func NewStreams(most int) *Streams {
	s := &Streams{slots: make(chan struct{}, most)}
	s.ctx, s.end = context.WithCancel(context.Background())
	return s
}

// End ends every stream; their clients resume elsewhere or later.
func (s *Streams) End() { s.end() }

// Stream is one open event stream. It belongs to its handler's goroutine.
type Stream struct{ w *Writer }

// Open takes a place. The context ends with the request, the caller's credential
// or all streams; close has to be called. Nothing is sent before Begin.
func (s *Streams) Open(rw http.ResponseWriter, r *Request) (st *Stream, ctx context.Context, closeStream func(), err error) {
	w, ok := rw.(*Writer)
	if !ok {
		return nil, nil, nil, errors.New("streams need the server's own writer")
	}
	if s.ctx.Err() != nil {
		return nil, nil, nil, fleet.Errorf(fleet.CodeUnavailable, "the server is stopping").With(DetailRetryAfter, "1")
	}
	select {
	case s.slots <- struct{}{}:
	default:
		n := strconv.Itoa(cap(s.slots))
		return nil, nil, nil, fleet.Errorf(fleet.CodeUnavailable, "%s event streams are open already", n).
			With(fleet.DetailLimit, n).With(fleet.DetailUsage, n).With(fleet.DetailRemedy, "close some, or ask for the state from time to time")
	}
	ctx, cancel := r.Principal().Follow(r.Context())
	stop := context.AfterFunc(s.ctx, cancel)
	return &Stream{w}, ctx, func() {
		stop()
		cancel()
		<-s.slots
	}, nil
}

// Begin makes the answer a stream; the status goes out with the first Write.
func (st *Stream) Begin() {
	st.w.Stream, st.w.WriteTimeout = true, 0
	h := st.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
}

// Write sends data at once and reports whether the reader is still there.
func (st *Stream) Write(data []byte) bool {
	st.w.SetWriteDeadline(time.Now().Add(streamWriteTimeout))
	if st.w.Status == 0 {
		st.w.WriteHeader(http.StatusOK)
	}
	if _, err := st.w.Write(data); err != nil {
		return false
	}
	return http.NewResponseController(st.w.ResponseWriter).Flush() == nil
}

// Flush sends data at once. It fails when the reader takes nothing of it within
// a time.
func Flush(w http.ResponseWriter, data []byte, within time.Duration) error {
	if len(data) == 0 {
		return nil
	}
	if ww, ok := w.(*Writer); ok {
		ww.SetWriteDeadline(time.Now().Add(within))
	}
	if _, err := w.Write(data); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}
