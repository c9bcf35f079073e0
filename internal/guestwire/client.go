package guestwire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1/guestwirev1connect"
)

// receiveBuffer bounds what one call receives ahead of its reader, in bytes.
const receiveBuffer = 256 << 10

// Client speaks to the guest agent of one VM, over one connection that all
// calls share and that is made anew when it is found dead.
type Client struct {
	rpc     guestwirev1connect.GuestClient
	freezer guestwirev1connect.FreezerClient
	bearer  bearer
	conns   connSet
}

// NewClient returns a client that connects by dial, which is given at most
// DialTimeout, and presents token.
func NewClient(dial func(ctx context.Context) (net.Conn, error), token string) *Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	c := &Client{}
	t := &http.Transport{
		Protocols:          protocols,
		DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, DialTimeout)
			defer cancel()
			conn, err := dial(ctx)
			if err != nil {
				return nil, err
			}
			return c.conns.add(conn)
		},
		HTTP2: &http.HTTP2Config{
			StrictMaxConcurrentRequests: true, // one connection, whatever runs on it
			MaxReceiveBufferPerStream:   receiveBuffer,
			SendPingTimeout:             PingAfter,
			PingTimeout:                 PingTimeout,
		},
	}
	c.bearer.client = http.Client{Transport: t, CheckRedirect: noRedirect}
	c.bearer.set(token)
	opts := []connect.ClientOption{
		connect.WithAcceptCompression("gzip", nil, nil), // the link is memory: packing only costs
		connect.WithReadMaxBytes(MaxMessage),
	}
	c.rpc = guestwirev1connect.NewGuestClient(&c.bearer, "http://guest", opts...)
	c.freezer = guestwirev1connect.NewFreezerClient(&c.bearer, "http://guest", opts...)
	return c
}

// bearer adds the token to every request that brings none.
type bearer struct {
	client http.Client
	value  atomic.Pointer[string]
}

func (b *bearer) set(token string) {
	value := "Bearer " + token
	b.value.Store(&value)
}

// Do also makes the end of the request's context end the call. Once there is a
// response, the transport does not look at the context while the request waits
// for its reader or for flow control: a command that reads no input would
// outlive its caller.
func (b *bearer) Do(req *http.Request) (*http.Response, error) {
	if req.Header.Get("Authorization") == "" {
		req.Header.Set("Authorization", *b.value.Load())
	}
	res, err := b.client.Do(req)
	if err != nil {
		return nil, err
	}
	body := res.Body
	stop := context.AfterFunc(req.Context(), func() { _ = body.Close() })
	res.Body = &callBody{ReadCloser: body, stop: stop}
	return res, nil
}

// callBody is a response's body, whose end is no longer awaited once closed.
type callBody struct {
	io.ReadCloser
	stop func() bool
}

func (b *callBody) Close() error {
	b.stop()
	return b.ReadCloser.Close()
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close drops the connection. Calls that are still running fail, and so do
// later ones.
func (c *Client) Close() error { return c.conns.close() }

// Info asks the guest what it is.
func (c *Client) Info(ctx context.Context) (fleet.GuestInfo, error) {
	res, err := c.rpc.Info(ctx, connect.NewRequest(&guestwirev1.InfoRequest{}))
	if err != nil {
		return fleet.GuestInfo{}, clientError(ctx, "ask the guest", err)
	}
	m := res.Msg
	info := fleet.GuestInfo{Version: m.Version, WireVersion: int(m.WireVersion), BootID: m.BootId, UptimeMS: m.UptimeMs, Ready: m.Ready,
		Frozen: m.Frozen, Renewed: m.Generation}
	for _, i := range m.Renewed {
		info.Anew = append(info.Anew, fleet.Renewal{Name: i.Name, Detail: i.Detail})
	}
	if h := m.Health; h != nil {
		info.Health = (&fleet.HealthStatus{
			State: fleet.HealthState(h.State), Since: time.UnixMilli(h.SinceUnixMs), Failures: int(h.Failures), Message: h.Message,
		}).Sound()
	}
	return info, nil
}

// Exec runs a command and returns when it has ended and all its output is
// written; if ctx ends first, or stdio fails, the guest kills its whole process
// tree. A Read of stdio.Stdin in progress is not waited for: the caller ends
// it, and nothing reads again.
func (c *Client) Exec(ctx context.Context, spec fleet.ExecSpec, stdio fleet.Stdio) (fleet.ExecStatus, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream := c.rpc.Exec(ctx)
	start := &guestwirev1.ExecStart{
		Argv: spec.Argv, Env: spec.Env, Cwd: spec.Cwd, User: spec.User,
		TimeoutMs: spec.Timeout.Milliseconds(), Stdin: stdio.Stdin != nil,
	}
	if spec.Timeout > 0 && start.TimeoutMs == 0 {
		start.TimeoutMs = 1
	}
	// A failed send says little: what ended the call is in the response.
	err := stream.Send(&guestwirev1.ExecRequest{Kind: &guestwirev1.ExecRequest_Start{Start: start}})
	if err == nil && stdio.Stdin != nil {
		go sendInput(stream, stdio.Stdin, cancel) // its sends end with ctx
	} else {
		_ = stream.CloseRequest()
	}
	status, err := receiveOutput(stream, stdio)
	if err != nil {
		return fleet.ExecStatus{}, clientError(ctx, "run a command in the guest", err)
	}
	return status, nil
}

type clientExec = connect.BidiStreamForClient[guestwirev1.ExecRequest, guestwirev1.ExecResponse]

// sendInput sends all of in and says that it was all. Input that breaks off is
// not ended: the command must not take a part for the whole.
func sendInput(stream *clientExec, in io.Reader, cancel context.CancelCauseFunc) {
	defer func() { _ = stream.CloseRequest() }()
	buf := make([]byte, MaxChunk)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if stream.Send(&guestwirev1.ExecRequest{Kind: &guestwirev1.ExecRequest_Stdin{Stdin: buf[:n]}}) != nil {
				return // the response says why
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = stream.Send(&guestwirev1.ExecRequest{Kind: &guestwirev1.ExecRequest_StdinEof{StdinEof: &guestwirev1.StdinEOF{}}})
			return
		case err != nil:
			cancel(&ownError{"read input", err})
			return
		}
	}
}

// ownError is a failure of the caller's own streams, not of the guest.
type ownError struct {
	op  string
	err error
}

func (e *ownError) Error() string { return e.op + ": " + e.err.Error() }
func (e *ownError) Unwrap() error { return e.err }

func receiveOutput(stream *clientExec, stdio fleet.Stdio) (status fleet.ExecStatus, err error) {
	defer func() { _ = stream.CloseResponse() }() // what there was to learn is learnt
	ended := false
	for {
		m, err := stream.Receive()
		if errors.Is(err, io.EOF) && ended {
			return status, nil
		}
		if errors.Is(err, io.EOF) {
			return status, io.ErrUnexpectedEOF
		}
		if err != nil {
			return status, err
		}
		var w io.Writer
		var p []byte
		switch k := m.Kind.(type) {
		case *guestwirev1.ExecResponse_Stdout:
			w, p = stdio.Stdout, k.Stdout
		case *guestwirev1.ExecResponse_Stderr:
			w, p = stdio.Stderr, k.Stderr
		case *guestwirev1.ExecResponse_Exit:
			status, ended = statusOf(k.Exit), true
		}
		if w == nil {
			continue
		}
		if _, err := w.Write(p); err != nil {
			return status, &ownError{"write output", err}
		}
	}
}

func statusOf(m *guestwirev1.ExitStatus) fleet.ExecStatus {
	return fleet.ExecStatus{ExitCode: int(m.GetExitCode()), Signal: m.GetSignal(), TimedOut: m.GetTimedOut()}
}

// WriteFiles writes files one after another and makes their directories. Each
// is written whole or not at all; after an error those before it are there. A
// connection that breaks is tried once more: writing twice changes nothing.
func (c *Client) WriteFiles(ctx context.Context, files []fleet.GuestFile) error {
	err := c.writeFiles(ctx, files)
	if errors.Is(err, fleet.ErrGuestUnavailable) && ctx.Err() == nil {
		err = c.writeFiles(ctx, files)
	}
	return err
}

func (c *Client) writeFiles(ctx context.Context, files []fleet.GuestFile) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := c.rpc.WriteFiles(ctx)
	sendErr := sendFiles(stream, files)
	// If the guest refused a file, sending failed with io.EOF and the answer
	// has the reason.
	_, err := stream.CloseAndReceive()
	if err == nil && sendErr != nil {
		err = sendErr
	}
	if err != nil {
		return clientError(ctx, "write files in the guest", err)
	}
	return nil
}

type fileStream = connect.ClientStreamForClient[guestwirev1.WriteFilesRequest, guestwirev1.WriteFilesResponse]

func sendFiles(stream *fileStream, files []fleet.GuestFile) error {
	for _, f := range files {
		start := &guestwirev1.FileStart{Path: f.Path, Mode: f.Mode, Size: int64(len(f.Data))}
		if err := stream.Send(&guestwirev1.WriteFilesRequest{Kind: &guestwirev1.WriteFilesRequest_File{File: start}}); err != nil {
			return err
		}
		for data := f.Data; len(data) > 0; {
			n := min(len(data), MaxFileChunk)
			if err := stream.Send(&guestwirev1.WriteFilesRequest{Kind: &guestwirev1.WriteFilesRequest_Data{Data: data[:n]}}); err != nil {
				return err
			}
			data = data[n:]
		}
	}
	return nil
}

// Drain ends the machine's work, running command if it is not empty.
func (c *Client) Drain(ctx context.Context, command string) (fleet.ExecStatus, error) {
	res, err := c.rpc.Drain(ctx, connect.NewRequest(&guestwirev1.DrainRequest{Command: command}))
	if err != nil {
		return fleet.ExecStatus{}, clientError(ctx, "drain the guest", err)
	}
	return statusOf(res.Msg.Status), nil
}

// Rotate gives the guest another token and certificate and presents that token
// from then on, in the same connection. It succeeds too when the guest has them
// already, as after a rotation whose answer was lost.
func (c *Client) Rotate(ctx context.Context, token string, certPEM, keyPEM []byte) error {
	msg := &guestwirev1.RotateRequest{Token: token, Cert: certPEM, Key: keyPEM}
	_, err := c.rpc.Rotate(ctx, connect.NewRequest(msg))
	if connect.CodeOf(err) == connect.CodeUnauthenticated {
		again := connect.NewRequest(msg)
		again.Header().Set("Authorization", "Bearer "+token)
		_, err = c.rpc.Rotate(ctx, again)
	}
	if err != nil {
		return clientError(ctx, "rotate the guest's token", err)
	}
	c.bearer.set(token)
	return nil
}

// Takes reports whether the guest takes a token; an error tells that nobody
// knows.
func (c *Client) Takes(ctx context.Context, token string) (bool, error) {
	req := connect.NewRequest(&guestwirev1.InfoRequest{})
	req.Header().Set("Authorization", "Bearer "+token)
	_, err := c.rpc.Info(ctx, req)
	switch {
	case err == nil:
		return true, nil
	case connect.CodeOf(err) == connect.CodeUnauthenticated && connect.IsWireError(err):
		return false, nil
	}
	return false, clientError(ctx, "ask the guest", err)
}

// Present makes the client present another token.
func (c *Client) Present(token string) { c.bearer.set(token) }

// Shutdown makes the guest end its processes, sync and power off. It returns
// when the guest has begun.
func (c *Client) Shutdown(ctx context.Context) error {
	if _, err := c.rpc.Shutdown(ctx, connect.NewRequest(&guestwirev1.ShutdownRequest{})); err != nil {
		return clientError(ctx, "shut the guest down", err)
	}
	return nil
}

// clientError gives an error its code for callers. What the guest refused
// keeps its message; what did not arrive is unavailable.
func clientError(ctx context.Context, op string, err error) error {
	var own *ownError
	if errors.As(err, &own) {
		return fmt.Errorf("%s: %w", op, err)
	}
	if ctx.Err() != nil {
		return withCause(fleet.CodeDeadlineExceeded, op, context.Cause(ctx))
	}
	var remote *connect.Error
	if !errors.As(err, &remote) {
		return fleet.Wrap(fleet.CodeUnavailable, errors.Join(fleet.ErrGuestUnavailable, err), op+": the guest does not answer")
	}
	if !connect.IsWireError(err) {
		return fleet.Wrap(fleet.CodeUnavailable, errors.Join(fleet.ErrGuestUnavailable, err), op+": the guest does not answer")
	}
	said := refusal(remote.Message())
	if code, known := remoteCodes[remote.Code()]; known {
		refused := fleet.Wrap(code, errors.New(remote.Code().String()), said)
		for k, v := range detailsOf(remote) {
			refused = refused.With(k, v)
		}
		return refused
	}
	return fleet.Wrap(fleet.CodeUnavailable, errors.Join(fleet.ErrGuestUnavailable, errors.New(said)), op+": the guest does not answer")
}

// maxRefusal bounds what is passed on of a guest's own words, in bytes: who
// owns the guest can make it say anything.
const maxRefusal = 1 << 10

func refusal(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), maxRefusal)], "")
}

func withCause(code fleet.Code, op string, cause error) error {
	if errors.Is(cause, context.DeadlineExceeded) {
		return fleet.Wrap(code, cause, op+": the guest did not answer in time")
	}
	return fmt.Errorf("%s: %w", op, cause)
}

// remoteCodes are the refusals a guest can mean.
var remoteCodes = map[connect.Code]fleet.Code{
	connect.CodeInvalidArgument:    fleet.CodeInvalidArgument,
	connect.CodeNotFound:           fleet.CodeNotFound,
	connect.CodeAlreadyExists:      fleet.CodeConflict,
	connect.CodePermissionDenied:   fleet.CodeForbidden,
	connect.CodeOutOfRange:         fleet.CodePayloadTooLarge,
	connect.CodeFailedPrecondition: fleet.CodeConflict,
	connect.CodeResourceExhausted:  fleet.CodeUnavailable,
	connect.CodeUnimplemented:      fleet.CodeUnimplemented,
	connect.CodeInternal:           fleet.CodeInternal,
	connect.CodeDeadlineExceeded:   fleet.CodeDeadlineExceeded,
	connect.CodeUnauthenticated:    fleet.CodeInternal, // our own token is wrong, not the caller's
}
