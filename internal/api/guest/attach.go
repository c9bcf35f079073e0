package guest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/attachframe"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
)

const (
	// attachLinger is how long a command that was started by an attach outlives
	// a server that died with it.
	attachLinger = 30 * time.Second
	// removeLimit bounds the end of a command whose connection has ended.
	removeLimit = 20 * time.Second
)

// loginShell starts bash where there is one.
var loginShell = []string{"/bin/sh", "-c", "[ -x /bin/bash ] && exec /bin/bash -l; exec /bin/sh -l"}

// attachRequest is a terminal that is asked for.
type attachRequest struct {
	start   *guestwirev1.StartProcessRequest // nil: a process that is there
	process string
	offset  int64
	size    *guestwirev1.Terminal // nil: not said
	writer  string                // of the input
	named   bool                  // by the client, which will come back under that name
}

var writerRule = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

func readAttach(q url.Values) (req attachRequest, err error) {
	tty, err := flag(q, "tty")
	if err != nil {
		return req, err
	}
	if !tty {
		return req, fleet.Invalid("tty", "1 or true", "add tty=1; what needs no terminal is a process or an exec", "is needed")
	}
	req.writer, req.named = q.Get("input"), q.Has("input")
	if !req.named {
		req.writer = rand.Text()
	} else if !writerRule.MatchString(req.writer) {
		return req, fleet.Invalid("input", writerRule.String(), "take another name", "%.80q is not allowed", req.writer)
	}
	size := attachframe.Size{}
	size.Rows, _ = strconv.Atoi(q.Get("rows")) // other values are ignored, as public clients expect
	size.Cols, _ = strconv.Atoi(q.Get("cols"))
	if size, ok := size.Clamp(); ok {
		req.size = &guestwirev1.Terminal{Rows: uint32(size.Rows), Cols: uint32(size.Cols)}
	}
	if req.process = q.Get("process"); req.process != "" {
		req.offset, err = number(q, "offset")
		return req, err
	}
	body := gen.StartProcess{Cmd: q["cmd"], Cwd: q.Get("cwd"), User: q.Get("user"), Hold: true, LingerMs: attachLinger.Milliseconds(), Tty: &gen.TerminalSize{}}
	if len(body.Cmd) == 0 {
		body.Cmd = loginShell
	}
	for _, v := range q["env"] {
		name, value, ok := strings.Cut(v, "=")
		if !ok {
			return req, fleet.Invalid("env", "NAME=value", "write it as NAME=value", "%.80q is not allowed", v)
		}
		if body.Env == nil {
			body.Env = map[string]string{}
		}
		body.Env[name] = value
	}
	if req.start, err = startMessage(body); err != nil {
		return req, err
	}
	req.process = req.start.GetId()
	if req.size != nil {
		req.start.Terminal = req.size
	}
	return req, nil
}

// attach shows a terminal. All that can fail has failed before the connection
// becomes one of frames, so that a failure is an ordinary answer.
func (s routes) attach(w http.ResponseWriter, r *web.Request) error {
	upgrade, err := upgradeOf(r.Request)
	if err != nil {
		return err
	}
	req, err := readAttach(r.URL.Query())
	if err != nil {
		return err
	}
	session, err := s.open(r, "attach", map[string]string{"command": strings.Join(req.start.GetCommand().GetArgv(), " "), "process": req.process})
	if err != nil {
		return err
	}
	defer session.Close()
	_, ctx, closeStream, err := s.Streams.Open(w, r)
	if err != nil {
		return err
	}
	defer closeStream()
	t := &terminal{session: session, id: req.process, at: req.offset, writer: req.writer, named: req.named}
	if err := t.begin(ctx, req); err != nil {
		return session.Explain(ctx, err)
	}
	if t.named {
		w.Header().Set(attachframe.InputHeader, strconv.FormatInt(t.input, 10))
	}
	if req.start != nil {
		defer t.remove()
	}
	conn, err := upgrade(w, r)
	if errors.Is(err, errClosed) {
		return nil // answered, as far as there is somebody to answer
	}
	if err != nil {
		return err
	}
	r.Log.Info("terminal attached", "vm_id", session.VM.ID, "actor", r.Principal().Actor(), "process", t.id, "request_id", r.ID)
	t.serve(ctx, conn)
	r.Log.Info("terminal left", "vm_id", session.VM.ID, "actor", r.Principal().Actor(), "process", t.id, "request_id", r.ID)
	return nil
}

// terminal is a process with a terminal that somebody looks at.
type terminal struct {
	session *guestops.Session
	id      string
	at      int64 // of the output
	input   int64 // how much of the writer's the process has
	writer  string
	named   bool
}

// begin starts the process, or finds it.
func (t *terminal) begin(ctx context.Context, req attachRequest) error {
	ctx, cancel := context.WithTimeout(ctx, quickLimit)
	defer cancel()
	if req.start != nil {
		_, err := t.session.Processes.StartProcess(ctx, connect.NewRequest(req.start))
		return err
	}
	res, err := t.session.Processes.WaitProcess(ctx, connect.NewRequest(&guestwirev1.WaitProcessRequest{Id: t.id}))
	if err != nil {
		return err
	}
	p := res.Msg.GetProcess()
	if !p.GetTerminal() {
		return fleet.Errorf(fleet.CodeConflict, "process %s has no terminal", t.id).With(fleet.DetailReason, "no_terminal").
			With(fleet.DetailRemedy, "read its output, and send it input, by their own routes")
	}
	if t.at > p.GetStdout().GetEnd() {
		return fleet.Invalid("offset", strconv.FormatInt(p.GetStdout().GetEnd(), 10), "ask for what there is", "is %d", t.at)
	}
	if p.GetExit() == nil {
		if err := t.typed(ctx, p.GetInput()); err != nil {
			return err
		}
	}
	if req.size != nil && p.GetExit() == nil {
		_, err = t.session.Processes.ResizeProcess(ctx, connect.NewRequest(&guestwirev1.ResizeProcessRequest{Id: t.id, Terminal: req.size}))
	}
	return err
}

// remove ends the command, whose connection has ended.
func (t *terminal) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), removeLimit)
	defer cancel()
	_, _ = t.session.Processes.RemoveProcess(ctx, connect.NewRequest(&guestwirev1.RemoveProcessRequest{Id: t.id})) // else it lingers
}

// serve moves frames until either end is over.
func (t *terminal) serve(ctx context.Context, conn frameConn) {
	ctx, cancel := context.WithCancel(ctx)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer cancel() // a client that left ends the session
		t.read(ctx, conn)
	})
	t.write(ctx, conn)
	cancel()
	conn.close()
	reading.Wait()
}

// read takes frames of the client. Types that it does not know are skipped.
func (t *terminal) read(ctx context.Context, conn frameConn) {
	for {
		typ, payload, err := conn.next(ctx)
		if err != nil {
			return
		}
		switch typ {
		case attachframe.Stdin:
			err = t.types(ctx, conn, payload)
		case attachframe.Resize:
			var size attachframe.Size
			if json.Unmarshal(payload, &size) != nil {
				continue
			}
			if size, ok := size.Clamp(); ok {
				_, err = t.session.Processes.ResizeProcess(ctx, connect.NewRequest(&guestwirev1.ResizeProcessRequest{
					Id: t.id, Terminal: &guestwirev1.Terminal{Rows: uint32(size.Rows), Cols: uint32(size.Cols)},
				}))
			}
		}
		if err != nil && !overErr(err) {
			return
		}
	}
}

// overErr says that the process has ended, whose exit follows. That the input
// cannot go on where it was is not that.
func overErr(err error) bool {
	var fe *fleet.Error
	return fleet.CodeOf(err) == fleet.CodeConflict && !(errors.As(err, &fe) && fe.Details[fleet.DetailReason] == "offset")
}

// typed asks how much the process has of what this writer typed before. A guest
// that knows of no writers has one offset, total, for all.
func (t *terminal) typed(ctx context.Context, total int64) error {
	res, err := t.session.Processes.SendInput(ctx, connect.NewRequest(&guestwirev1.SendInputRequest{Id: t.id, Writer: t.writer}))
	if err != nil {
		return err
	}
	if t.input = res.Msg.GetOffset(); res.Msg.GetWriter() == "" {
		t.input, t.writer, t.named = total, "", false
	}
	return nil
}

// types sends input, whose frames have no offset. Frames of an earlier
// connection that arrive late are repeats of what this writer sends again.
func (t *terminal) types(ctx context.Context, conn frameConn, payload []byte) error {
	if len(payload) == 0 {
		return nil
	}
	_, err := t.session.Processes.SendInput(ctx, connect.NewRequest(&guestwirev1.SendInputRequest{
		Id: t.id, Writer: t.writer, Offset: t.input, Data: payload,
	}))
	if err != nil {
		return err
	}
	t.input += int64(len(payload))
	if !t.named {
		return nil
	}
	return conn.send(ctx, attachframe.AppendJSON(nil, attachframe.Taken, attachframe.Input{Taken: t.input}))
}

// write sends the terminal's output, and at last how the process ended.
func (t *terminal) write(ctx context.Context, conn frameConn) {
	out, err := t.session.Processes.FollowOutput(ctx, connect.NewRequest(&guestwirev1.FollowOutputRequest{Id: t.id, Stdout: t.at, Follow: true}))
	if err != nil {
		return
	}
	defer func() { _ = out.Close() }()
	var buf []byte
	for out.Receive() {
		buf = buf[:0]
		switch m := out.Msg(); {
		case m.GetPiece().GetStream() == 1:
			buf = attachframe.Append(buf, attachframe.Stdout, m.GetPiece().GetData())
		case m.GetEnd() != nil:
			buf = attachframe.AppendJSON(buf, attachframe.Exit, exitOf(m.GetEnd()))
		case m.GetQuiet() != nil:
			if conn.ping(ctx) != nil {
				return
			}
			continue
		}
		if len(buf) > 0 && conn.send(ctx, buf) != nil {
			return
		}
	}
}

// frameConn is a connection of frames.
type frameConn interface {
	next(ctx context.Context) (attachframe.Type, []byte, error)
	// send sends one whole frame.
	send(ctx context.Context, frame []byte) error
	ping(ctx context.Context) error
	close()
}

type upgrader = func(w http.ResponseWriter, r *web.Request) (frameConn, error)

// upgradeOf finds what a request wants its connection to become.
func upgradeOf(r *http.Request) (upgrader, error) {
	switch want := r.Header.Get("Upgrade"); {
	case strings.EqualFold(want, attachframe.Protocol):
		return hijack, nil
	case strings.EqualFold(want, "websocket"):
		return acceptWebSocket, nil
	}
	return nil, fleet.Errorf(fleet.CodeInvalidArgument, "this needs an upgrade of the connection").
		With(fleet.DetailScope, "Upgrade").With(fleet.DetailLimit, attachframe.Protocol+" or websocket").
		With(fleet.DetailRemedy, "ask over HTTP/1.1 with the header Upgrade")
}

// leads asks, as the beginning of an ordinary answer does, whether this server
// may still speak for the fleet.
func leads(w http.ResponseWriter) error {
	if ww, ok := w.(*web.Writer); ok && ww.Leads != nil {
		return ww.Leads()
	}
	return nil
}

var errClosed = errors.New("the connection is closed")
