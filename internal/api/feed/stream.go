package feed

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

const (
	replayPage  = 256
	replayRetry = time.Second
	// maxBurst bounds the change sets that go out in one write.
	maxBurst = 64
)

// begun is said at once, so that a client knows that it is connected before
// anything happens.
var begun = []byte(": connected\n\n")

// resync says that events are missing between what a client has seen and what
// follows.
type resync struct {
	Reason string `json:"reason"`
	After  string `json:"after"` // what the client had seen
	Next   string `json:"next"`  // the id after which the stream goes on
}

// stream is one open stream of the fleet's events. It belongs to its handler's
// goroutine.
type stream struct {
	s    routes
	q    query
	out  *web.Stream
	sub  *state.Subscription
	pos  uint64    // the log is read up to here
	told uint64    // the last id that is out
	at   time.Time // when that event was committed
	buf  []byte
}

func (s routes) stream(w http.ResponseWriter, r *web.Request, q query) error {
	out, ctx, closeStream, err := s.Streams.Open(w, r)
	if err != nil {
		return err
	}
	defer closeStream()
	st := &stream{s: s, q: q, out: out}
	var head uint64
	st.sub, err = s.Store.ViewAndWatch(ctx, func(tx *state.ReadTx) error {
		head = tx.Seq()
		return nil
	})
	if err != nil {
		return err
	}
	defer func() { st.sub.Close() }() // whichever it is by then
	if err := st.place(ctx, head); err != nil {
		return err
	}
	defer s.Metrics.StreamOpened()()
	out.Begin()
	if !out.Write(begun) || r.Method == http.MethodHead || !st.flush() {
		return nil
	}
	if st.pos < head && !st.replay(ctx) {
		return nil
	}
	st.run(ctx)
	return nil
}

// place finds where the stream begins.
func (st *stream) place(ctx context.Context, head uint64) (err error) {
	after, known := fleet.ParseEventID(st.q.after)
	switch {
	case st.q.after == "" && st.q.since.IsZero():
		st.pos = head
	case st.q.after == "":
		st.pos, err = st.s.before(ctx, st.q.since, head)
	case !known || after > head:
		st.pos = head
		st.resync("this is no id of this log; it was made by another server, or the log was restored", st.q.after)
	default:
		st.pos = after
	}
	st.told = st.pos
	return err
}

// run sends what is committed until the reader leaves or the server stops.
func (st *stream) run(ctx context.Context) {
	quiet := time.Now().Add(web.KeepAlive)
	for ctx.Err() == nil {
		wrote, err := st.burst(ctx, quiet)
		switch {
		case err == nil:
			if !st.flush() {
				return
			}
			if wrote {
				st.s.Metrics.EventDelivered(time.Since(st.at))
				quiet = time.Now().Add(web.KeepAlive)
			}
		case errors.Is(err, state.ErrLagged):
			st.s.Metrics.StreamLagged()
			st.sub.Close()
			// The order matters: what is committed in between is in both.
			st.sub = st.s.Store.Watch(ctx)
			if !st.replay(ctx) {
				return
			}
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			if !st.keepAlive() {
				return
			}
			quiet = time.Now().Add(web.KeepAlive)
		default:
			return
		}
	}
}

// over is a context that has ended: Next takes what is there and does not wait.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// burst waits for a change set and adds it, and those right behind it, to what
// goes out.
func (st *stream) burst(ctx context.Context, quiet time.Time) (wrote bool, err error) {
	wait, cancel := context.WithDeadline(ctx, quiet)
	defer cancel()
	for n := range maxBurst {
		set, err := st.sub.Next(wait)
		if err != nil {
			if n > 0 && errors.Is(err, context.Canceled) {
				err = nil
			}
			return len(st.buf) > 0, err
		}
		for i := range set.Events {
			st.add(&set.Events[i])
		}
		wait = over
	}
	return len(st.buf) > 0, nil
}

// replay reads on in the log until it is all out, and reports whether the
// reader is still there.
func (st *stream) replay(ctx context.Context) bool {
	for {
		list, err := st.s.Store.Events(ctx, state.EventQuery{After: st.pos, Limit: replayPage})
		if err != nil {
			select {
			case <-ctx.Done():
				return false
			case <-time.After(replayRetry):
			}
			continue
		}
		if len(list) > 0 && list[0].Seq != st.pos+1 && st.pos > 0 {
			seen := st.pos
			st.pos = list[0].Seq - 1
			st.resync("the events in between are not kept any more", fleet.EventID(seen))
		}
		for i := range list {
			st.add(&list[i])
		}
		if !st.flush() {
			return false
		}
		if len(list) < replayPage {
			return true
		}
	}
}

// add puts an event that is not out yet into what goes out.
func (st *stream) add(e *fleet.Event) {
	if e.Seq <= st.pos {
		return
	}
	st.pos = e.Seq
	if st.q.take(e) {
		st.at, st.told = e.At, st.pos
		st.buf = append(st.buf, st.s.recent.frame(e)...)
	}
}

func (st *stream) resync(why, seen string) {
	st.told = st.pos
	st.buf = append(st.buf, render(st.pos, "resync", events.Payload(resync{Reason: why, After: seen, Next: fleet.EventID(st.pos)}))...)
}

// frames keeps what the newest events look like on a stream, so that they are
// rendered once and not for each of their readers.
type frames struct {
	slots [2048]atomic.Pointer[frame]
}

type frame struct {
	seq  uint64
	data []byte
}

func (f *frames) frame(e *fleet.Event) []byte {
	slot := &f.slots[e.Seq%uint64(len(f.slots))]
	if has := slot.Load(); has != nil && has.seq == e.Seq {
		return has.data
	}
	made := &frame{e.Seq, render(e.Seq, e.Type, events.Document(e))}
	slot.Store(made)
	return made.data
}

func render(seq uint64, typ string, data []byte) []byte {
	out := make([]byte, 0, len(data)+len(typ)+48)
	out = append(out, "id: "...)
	out = strconv.AppendUint(out, seq, 10)
	out = append(out, "\nevent: "...)
	out = append(out, typ...)
	out = append(out, "\ndata: "...)
	out = append(out, data...)
	return append(out, "\n\n"...)
}

// keepAlive says that the stream is still there, and how far it has come: a
// client that wants little then does not resume from long ago.
func (st *stream) keepAlive() bool {
	st.buf = append(st.buf, web.KeepAliveComment...)
	if st.told < st.pos {
		st.told = st.pos
		st.buf = append(st.buf, "id: "+fleet.EventID(st.pos)+"\n\n"...)
	}
	return st.flush()
}

// flush sends what has gathered and reports whether the reader is still there.
func (st *stream) flush() bool {
	if len(st.buf) == 0 {
		return true
	}
	ok := st.out.Write(st.buf)
	if st.buf = st.buf[:0]; cap(st.buf) > 1<<20 {
		st.buf = nil
	}
	return ok
}
