package guest

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/attachframe"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
)

// writeLimit ends what is read by nobody: a reader that takes nothing of what
// is sent for so long.
const writeLimit = 2 * time.Minute

// outputRequest is what is asked for of a process's output.
type outputRequest struct {
	message *guestwirev1.FollowOutputRequest
	only    int32 // 1 or 2: this stream alone, as it is
}

func readOutputRequest(r *web.Request) (req outputRequest, err error) {
	q := r.URL.Query()
	m := &guestwirev1.FollowOutputRequest{Id: r.Item}
	for name, into := range map[string]*int64{"stdout": &m.Stdout, "stderr": &m.Stderr, "limit": &m.Limit} {
		if *into, err = number(q, name); err != nil {
			return req, err
		}
	}
	if m.Follow, err = flag(q, "follow"); err != nil {
		return req, err
	}
	switch stream := q.Get("stream"); stream {
	case "":
	case "stdout":
		req.only = 1
	case "stderr":
		req.only = 2
	default:
		return req, fleet.Invalid("stream", "stdout or stderr", "leave it out for both", "%.40q is not known", stream)
	}
	req.message = m
	return req, nil
}

func (s routes) output(w http.ResponseWriter, r *web.Request) error {
	req, err := readOutputRequest(r)
	if err != nil {
		return err
	}
	session, err := s.open(r, "processes.read", nil)
	if err != nil {
		return err
	}
	defer session.Close()
	_, ctx, closeStream, err := s.Streams.Open(w, r)
	if err != nil {
		return err
	}
	defer closeStream()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if req.only > 0 {
		if err := s.fromStart(ctx, session.Processes, &req); err != nil {
			return session.Explain(ctx, err)
		}
	}
	out, err := session.Processes.FollowOutput(ctx, connect.NewRequest(req.message))
	if err != nil {
		return session.Explain(ctx, err)
	}
	defer func() { _ = out.Close() }()
	a := &answer{w: w, req: req, at: [2]int64{req.message.GetStdout(), req.message.GetStderr()}}
	for out.Receive() {
		if err := a.add(out.Msg()); err != nil {
			return nil
		}
	}
	err = session.Explain(ctx, out.Err())
	switch {
	case err != nil && !a.begun:
		return err
	case err != nil && ctx.Err() == nil:
		panic(http.ErrAbortHandler) // an answer that ended well would look whole
	}
	a.begin()
	return nil
}

type waiter interface {
	WaitProcess(context.Context, *connect.Request[guestwirev1.WaitProcessRequest]) (*connect.Response[guestwirev1.WaitProcessResponse], error)
}

// fromStart lets one stream begin at what is still kept, which the header of
// the answer then says, and leaves out the other.
func (s routes) fromStart(ctx context.Context, p waiter, req *outputRequest) error {
	res, err := p.WaitProcess(ctx, connect.NewRequest(&guestwirev1.WaitProcessRequest{Id: req.message.GetId()}))
	if err != nil {
		return err
	}
	info := res.Msg.GetProcess()
	if req.only == 1 {
		req.message.Stdout = max(req.message.GetStdout(), info.GetStdout().GetStart())
	} else {
		req.message.Stderr = max(req.message.GetStderr(), info.GetStderr().GetStart())
	}
	return nil
}

// answer is output on its way to a reader.
type answer struct {
	w     http.ResponseWriter
	req   outputRequest
	at    [2]int64
	begun bool
	buf   []byte
}

func (a *answer) begin() {
	if a.begun {
		return
	}
	a.begun = true
	h := a.w.Header()
	h.Set("Content-Type", attachframe.MediaType)
	if a.req.only > 0 {
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Fuse-Offset", strconv.FormatInt(a.at[a.req.only-1], 10))
	}
	h.Set("X-Accel-Buffering", "no")
	if w, ok := a.w.(*web.Writer); ok {
		w.Stream, w.WriteTimeout = true, 0
	}
	a.w.WriteHeader(http.StatusOK)
}

// add passes a message on.
func (a *answer) add(m *guestwirev1.FollowOutputResponse) error {
	a.begin()
	a.buf = a.buf[:0]
	switch {
	case m.GetPiece() != nil:
		if err := a.piece(m.GetPiece()); err != nil {
			return err
		}
	case a.req.only > 0: // a raw stream has no way to say anything else
	case m.GetEnd() != nil:
		a.buf = attachframe.AppendJSON(a.buf, attachframe.Exit, exitOf(m.GetEnd()))
	default:
		a.buf = attachframe.Append(a.buf, attachframe.Quiet, nil)
	}
	if err := web.Flush(a.w, a.buf, writeLimit); err != nil {
		return err
	}
	return nil
}

func (a *answer) piece(p *guestwirev1.OutputPiece) error {
	i := p.GetStream() - 1
	if i != 0 && i != 1 || a.req.only > 0 && p.GetStream() != a.req.only {
		return nil
	}
	gap := p.GetOffset() != a.at[i]
	a.at[i] = p.GetOffset() + int64(len(p.GetData()))
	if a.req.only > 0 {
		if gap { // bytes that are missing must not look as if there were none
			panic(http.ErrAbortHandler)
		}
		a.buf = append(a.buf, p.GetData()...)
		return nil
	}
	if gap {
		a.buf = attachframe.AppendJSON(a.buf, attachframe.Gap, attachframe.Hole{Stream: int(p.GetStream()), Offset: p.GetOffset()})
	}
	a.buf = attachframe.Append(a.buf, attachframe.Type(p.GetStream()), p.GetData())
	return nil
}

func exitOf(p *guestwirev1.ProcessInfo) attachframe.ExitStatus {
	e := p.GetExit()
	return attachframe.ExitStatus{ExitCode: int(e.GetExitCode()), Signal: e.GetSignal(), TimedOut: e.GetTimedOut(), Failure: p.GetFailure()}
}
