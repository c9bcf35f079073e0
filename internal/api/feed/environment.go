package feed

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/state"
)

// stateMessage is a state event as it goes out.
type stateMessage struct {
	seq      uint64
	terminal bool
	data     []byte
}

func messageOf(ev *fleet.Event) stateMessage {
	return encodeMessage(gen.EnvironmentEvent{
		ID: fleet.EventID(ev.Seq), Event: "state", VMID: ev.EntityID, State: string(ev.State),
		URL: ev.URL, Error: ev.Error, UpdatedAt: ev.At.UTC(),
	}, ev.Seq)
}

// snapshotOf is the present state as a message; its id is the head, so that a
// resumption misses nothing and repeats nothing.
func snapshotOf(vm *fleet.VM, head uint64) stateMessage {
	return encodeMessage(gen.EnvironmentEvent{
		ID: fleet.EventID(head), Event: "state", VMID: vm.ID, State: string(vm.State),
		URL: vm.URL, Error: vm.LastError, UpdatedAt: vm.UpdatedAt.UTC(),
	}, head)
}

// endOf is the terminal event of a life as its record tells it.
func endOf(l *fleet.Life) stateMessage {
	return encodeMessage(gen.EnvironmentEvent{
		ID: fleet.EventID(l.EndedSeq), Event: "state", VMID: l.VMID, State: string(l.State), Error: l.Error, UpdatedAt: l.EndedAt.UTC(),
	}, l.EndedSeq)
}

func encodeMessage(ev gen.EnvironmentEvent, seq uint64) stateMessage {
	raw, err := json.Marshal(ev)
	if err != nil {
		raw = []byte("{}") // strings and a time of our own always encode
	}
	data := make([]byte, 0, len(raw)+len(ev.ID)+16)
	data = append(data, "id: "...)
	data = append(data, ev.ID...)
	data = append(data, "\ndata: "...)
	data = append(data, raw...)
	data = append(data, "\n\n"...)
	return stateMessage{seq: seq, terminal: fleet.IsTerminalState(fleet.VMState(ev.State)), data: data}
}

// streamEvents sends the states of one environment until its end.
func (s routes) streamEvents(rw http.ResponseWriter, r *web.Request) error {
	out, ctx, closeStream, err := s.Streams.Open(rw, r)
	if err != nil {
		return err
	}
	defer closeStream()

	begin, err := s.beginStream(ctx, r, r.Header.Get("Last-Event-ID"))
	if err != nil {
		return err
	}
	st := &lifeStream{s: s, caller: r.Principal(), vmID: r.Param, sub: begin.sub, out: out, last: begin.last}
	defer func() { st.sub.Close() }() // whichever it is by then
	if begin.over {
		rw.WriteHeader(http.StatusNoContent)
		return nil
	}
	defer s.Metrics.StreamOpened()()
	out.Begin()
	if !st.begin(begin.messages) || r.Method == http.MethodHead {
		return nil
	}
	st.run(ctx)
	return nil
}

// beginning is how a stream starts: with messages already there, after which
// those above last follow; or not at all, because it is over.
type beginning struct {
	sub      *state.Subscription
	messages []stateMessage
	last     uint64
	over     bool
}

// beginStream subscribes and reads the state at one point, so that nothing
// falls between, and then what a resumed stream has missed.
func (s routes) beginStream(ctx context.Context, r *web.Request, lastID string) (b beginning, err error) {
	id, caller := r.Param, r.Principal()
	after, resume := fleet.ParseEventID(lastID)
	var uid string
	var ended *fleet.Life
	b.sub, err = s.Store.ViewAndWatchVM(ctx, id, func(tx *state.ReadTx) error {
		b.last = tx.Seq()
		vm, live := tx.VMs().Get(id)
		// One whose id is another's by now still has its own life's end coming.
		live = live && caller.Sees(vm.Owner)
		life, known := latestLife(tx, id, caller)
		// An id above the head is another server's: it counts as none.
		resume = resume && after <= b.last
		if !live && (!known || !resume) {
			return gone(tx, r)
		}
		switch {
		case live:
			uid = vm.UID
			if !resume {
				b.messages = []stateMessage{snapshotOf(vm, b.last)}
			}
		default:
			uid, ended = life.UID, life
		}
		return nil
	})
	if err != nil || !resume {
		return b, err
	}
	q := state.EventQuery{After: after, UpTo: b.last, VMID: id}
	if after == 0 { // the oldest kept of this life, or of the last one
		q.UID = uid
	}
	if q.UpTo > q.After {
		if b.messages, err = s.replayStates(ctx, caller, q); err != nil {
			b.sub.Close()
			return b, err
		}
	}
	if n := len(b.messages); ended != nil && (n == 0 || !b.messages[n-1].terminal) {
		if b.over = ended.EndedSeq <= after; !b.over { // the log no longer has the end; the record has
			b.messages = append(b.messages, endOf(ended))
		}
	}
	return b, nil
}

// replay reads the caller's state events from the log, up to the first terminal
// one.
func (s routes) replayStates(ctx context.Context, caller auth.Principal, q state.EventQuery) ([]stateMessage, error) {
	q.StatesOnly, q.Limit = true, replayPage
	var out []stateMessage
	for {
		list, err := s.Store.Events(ctx, q)
		if err != nil {
			return nil, err
		}
		for i := range list {
			m := messageOf(&list[i])
			q.After = m.seq
			if !s.sees(caller, &list[i]) { // an earlier life of the id was another's
				continue
			}
			out = append(out, m)
			if m.terminal {
				return out, nil
			}
		}
		if len(list) < replayPage {
			return out, nil
		}
	}
}

// gone is the error for an id without a live environment; it tells whoever may
// know how the last life ended.
func gone(tx *state.ReadTx, r *web.Request) error {
	err := fleet.Errorf(fleet.CodeNotFound, "environment %.140q: %w", r.Param, fleet.ErrVMNotFound)
	if life, ok := latestLife(tx, r.Param, r.Principal()); ok {
		return err.With("uid", life.UID).With("ended_at", life.EndedAt.UTC().Format(time.RFC3339)).
			With(fleet.DetailReason, life.Reason.String())
	}
	return err
}

// latestLife is the last ended life of an id that the caller may know of, if
// that is not too long ago.
func latestLife(tx *state.ReadTx, id string, caller auth.Principal) (*fleet.Life, bool) {
	for life := range tx.Lives().ByVM(id) {
		if caller.Sees(life.Owner) {
			return life, time.Since(life.EndedAt) <= fleet.LifeRetention
		}
	}
	return nil, false
}

// sees reports whether an event is the caller's. Whose it is stands in it,
// unless it is older than that.
func (s routes) sees(caller auth.Principal, ev *fleet.Event) bool {
	if caller.SeesAll() || ev.Owner != "" {
		return caller.Sees(ev.Owner)
	}
	ok := false
	err := s.Store.View(func(tx *state.ReadTx) error {
		if vm, live := tx.VMs().GetUID(ev.UID); live {
			ok = caller.Sees(vm.Owner)
		} else if life, ended := tx.Lives().GetUID(ev.UID); ended {
			ok = caller.Sees(life.Owner)
		}
		return nil
	})
	return err == nil && ok
}

// lifeStream is one open stream of an environment's states. It belongs to its handler's goroutine.
type lifeStream struct {
	s      routes
	caller auth.Principal
	vmID   string
	sub    *state.Subscription
	out    *web.Stream
	last   uint64 // highest id that is out
	done   bool   // the terminal event is out
}

// begin sends the first messages, which carry ids up to last, and reports
// whether more is to come.
func (st *lifeStream) begin(messages []stateMessage) bool {
	var data []byte
	for _, m := range messages {
		data = append(data, m.data...)
		st.done = m.terminal
	}
	return st.out.Write(data) && !st.done
}

// run sends what arrives until the environment has ended, the reader left or
// the server stops.
func (st *lifeStream) run(ctx context.Context) {
	next := time.Now().Add(web.KeepAlive)
	for !st.done && ctx.Err() == nil {
		set, err := st.next(ctx, next)
		switch {
		case err == nil:
			list := messagesOf(&set, st.vmID)
			if !st.send(list) {
				return
			}
			if len(list) > 0 {
				st.s.Metrics.EventDelivered(time.Since(set.At))
			}
		case errors.Is(err, state.ErrLagged):
			if !st.catchUp(ctx) {
				return
			}
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			if !st.out.Write(web.KeepAliveComment) {
				return
			}
			next = time.Now().Add(web.KeepAlive)
		default:
			return
		}
	}
}

func (st *lifeStream) next(ctx context.Context, deadline time.Time) (state.ChangeSet, error) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	return st.sub.Next(ctx)
}

// catchUp takes up the feed anew and reads the log for what was missed. The
// order matters: what is committed in between is then in both, and sent once.
func (st *lifeStream) catchUp(ctx context.Context) bool {
	st.s.Metrics.StreamLagged()
	st.sub.Close()
	st.sub = st.s.Store.WatchVM(ctx, st.vmID)
	for {
		missed, err := st.s.replayStates(ctx, st.caller, state.EventQuery{After: st.last, VMID: st.vmID})
		if err == nil {
			return st.send(missed)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(replayRetry):
		}
	}
}

func messagesOf(set *state.ChangeSet, vmID string) []stateMessage {
	var out []stateMessage
	for i := range set.Events {
		if ev := &set.Events[i]; ev.EntityType == state.EntityVM && ev.EntityID == vmID && ev.State != "" {
			out = append(out, messageOf(ev))
		}
	}
	return out
}

// send writes the messages that are not out yet, up to the terminal one, and
// reports whether the reader is still there.
func (st *lifeStream) send(messages []stateMessage) bool {
	var data []byte
	for _, m := range messages {
		if m.seq <= st.last || st.done {
			continue
		}
		data = append(data, m.data...)
		st.last, st.done = m.seq, m.terminal
	}
	return len(data) == 0 || st.out.Write(data)
}
