package playguard

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/playguard/sshx"
)

// Protocol is the subprotocol of an exec.
const Protocol = "fuse.exec.v1"

// First bytes of binary messages.
const (
	channelInput  = 0
	channelOutput = 1
	channelError  = 2
)

const (
	// maxMessage bounds a message of the caller, in bytes.
	maxMessage = 128 << 10
	// firstMessage is how long the caller may take to say what is to be run.
	firstMessage = 10 * time.Second
	// sendLimit ends a caller who takes nothing for so long.
	sendLimit = 30 * time.Second
)

// exec runs a command for as long as its caller is there.
func (s routes) exec(w http.ResponseWriter, r *web.Request) error {
	p, err := s.service.Playground(r.Context(), r.Param)
	if err != nil {
		return err
	}
	if r.Header.Get("Upgrade") == "" {
		return fleet.Errorf(fleet.CodeInvalidArgument, "a command is run over a WebSocket, and this request asks for none").
			With(fleet.DetailRemedy, "use 'fuse playground exec', or a WebSocket client with the subprotocol "+Protocol)
	}
	_, ctx, closeStream, err := s.streams.Open(w, r)
	if err != nil {
		return err
	}
	defer closeStream()
	conn, err := websocket.Accept(w, r.Request, &websocket.AcceptOptions{Subprotocols: []string{Protocol}})
	if err != nil {
		return nil // it has answered
	}
	defer conn.CloseNow() //nolint:errcheck // what is left of it
	conn.SetReadLimit(maxMessage)
	// The request's context does not end with a connection that was taken over.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &call{conn: conn, ctx: ctx, cancel: cancel}
	req, err := c.first()
	if err != nil {
		c.finish(0, err)
		return nil
	}
	c.run(func(ctx context.Context, req service.ExecRequest) (int, error) {
		return s.service.Exec(ctx, string(p.ID), req)
	}, req)
	return nil
}

// call is one command and its caller.
type call struct {
	conn   *websocket.Conn
	ctx    context.Context
	cancel context.CancelFunc
	sizes  chan sshx.Size
}

// first reads what is to be run.
func (c *call) first() (req service.ExecRequest, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, firstMessage)
	defer cancel()
	kind, raw, err := c.conn.Read(ctx)
	if err != nil {
		return req, fleet.Wrap(fleet.CodeInvalidArgument, err, "what is to be run was not said")
	}
	var body gen.ExecPlayground
	if kind != websocket.MessageText {
		return req, fleet.Errorf(fleet.CodeInvalidArgument, "the first message must be text: what is to be run")
	}
	unknown, err := web.DecodeJSON(raw, &body)
	switch {
	case err != nil:
		return req, err
	case len(unknown) > 0: // nobody would see a warning
		return req, fleet.Errorf(fleet.CodeInvalidArgument, "%s is not known here", unknown[0])
	case len(body.Command) == 0:
		return req, fleet.Invalid("command", "a program and its arguments", "", "is empty")
	case body.Service == "":
		return req, fleet.Invalid("service", "one of the playground's", "", "is empty")
	}
	req = service.ExecRequest{Service: body.Service, Command: body.Command, Env: body.Env, User: body.User, Workdir: body.Workdir}
	if t := body.Terminal; t != (gen.ExecTerminal{}) {
		c.sizes = make(chan sshx.Size, 1)
		req.Terminal = &sshx.Terminal{Name: t.Name, Size: sshx.Size{Rows: t.Rows, Columns: t.Columns}, Resizes: c.sizes}
	}
	return req, nil
}

// run runs the command between its caller's messages, and tells its end.
func (c *call) run(do func(context.Context, service.ExecRequest) (int, error), req service.ExecRequest) {
	in, feed := io.Pipe()
	req.Input, req.Stdout, req.Stderr = in, channel{c, channelOutput}, channel{c, channelError}
	var goes sync.WaitGroup
	goes.Go(func() {
		defer c.cancel() // the caller has gone, or the command has ended
		c.read(feed)
	})
	goes.Go(c.beat)
	status, err := do(c.ctx, req)
	if err == nil && c.ctx.Err() != nil {
		err = context.Cause(c.ctx)
	}
	in.CloseWithError(io.ErrClosedPipe)
	// The end is sent before the reading stops: closing is what stops it.
	c.finish(status, err)
	c.cancel()
	goes.Wait()
}

// read passes on what the caller sends, until the connection ends.
func (c *call) read(feed *io.PipeWriter) {
	defer feed.CloseWithError(io.EOF)
	for {
		kind, raw, err := c.conn.Read(c.ctx)
		if err != nil {
			return
		}
		if kind == websocket.MessageBinary {
			if len(raw) > 1 && raw[0] == channelInput {
				feed.Write(raw[1:]) //nolint:errcheck // what ended takes no more; the rest is thrown away
			}
			continue
		}
		var control gen.ExecControl
		if json.Unmarshal(raw, &control) != nil {
			return
		}
		if control.EndOfInput {
			feed.CloseWithError(io.EOF)
		}
		if t := control.Resize; t.Rows > 0 && c.sizes != nil {
			select {
			case <-c.sizes: // only the latest counts
			default:
			}
			c.sizes <- sshx.Size{Rows: t.Rows, Columns: t.Columns}
		}
	}
}

// beat says now and then that the command goes on. It also notices a caller
// who has gone while nothing of what was sent is read.
func (c *call) beat() {
	ticker := time.NewTicker(web.KeepAlive)
	defer ticker.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-ticker.C:
			if _, err := (channel{c, channelOutput}).Write(nil); err != nil {
				c.cancel()
				return
			}
		}
	}
}

// finish tells the end and closes.
func (c *call) finish(status int, err error) {
	end := gen.ExecEnd{ExitStatus: &status}
	if err != nil {
		end = gen.ExecEnd{Error: errorOf(err)}
	}
	raw, merr := json.Marshal(end)
	if merr != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), sendLimit)
	defer cancel()
	if c.conn.Write(ctx, websocket.MessageText, raw) == nil {
		c.conn.Close(websocket.StatusNormalClosure, "") //nolint:errcheck // the caller may be gone
	}
}

func errorOf(err error) gen.ErrorInfo {
	var e *fleet.Error
	if !errors.As(err, &e) {
		return gen.ErrorInfo{Code: string(fleet.CodeUnavailable), Message: "the end of the command is not known"}
	}
	return gen.ErrorInfo{Code: string(e.Code), Message: e.Message, Details: e.Details}
}

// channel sends output.
type channel struct {
	call *call
	kind byte
}

// Write implements io.Writer.
func (w channel) Write(p []byte) (int, error) {
	ctx, cancel := context.WithTimeout(w.call.ctx, sendLimit)
	defer cancel()
	if err := w.call.conn.Write(ctx, websocket.MessageBinary, append([]byte{w.kind}, p...)); err != nil {
		return 0, err
	}
	return len(p), nil
}
