package guestd

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/process"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
)

// The protocol's pieces are the runner's: a build with unequal sizes fails.
var _ = [1]struct{}{}[process.ChunkSize-guestwire.MaxChunk]

type execStream = connect.BidiStream[guestwirev1.ExecRequest, guestwirev1.ExecResponse]

// Exec runs one command, whose tree is killed when the caller goes away.
func (s *guestService) Exec(ctx context.Context, stream *execStream) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("the first message of an exec must be its start"))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	send := &execSender{ctx: ctx, frames: make(chan execFrame)}
	stdio := process.IO{
		Stdout: &execOutput{send: send, ack: make(chan error, 1), message: stdoutMessage},
		Stderr: &execOutput{send: send, ack: make(chan error, 1), message: stderrMessage},
	}
	if start.Stdin {
		stdio.Stdin = &execInput{stream: stream, body: bodyOf(ctx), closed: make(chan struct{})}
	}
	var status fleet.ExecStatus
	var runErr error
	var run sync.WaitGroup
	run.Go(func() {
		defer close(send.frames)
		status, runErr = s.runner.Run(ctx, specOf(start), stdio, func(pid int) {
			_ = send.do(&guestwirev1.ExecResponse{Kind: &guestwirev1.ExecResponse_Started{Started: &guestwirev1.ExecStarted{Pid: int32(pid)}}}, make(chan error, 1))
		})
	})
	sendErr := send.pump(stream, cancel)
	run.Wait()
	defer s.once.Do(func() { close(s.used) })
	switch {
	case sendErr != nil:
		return sendErr
	case runErr != nil:
		return wireError(runErr)
	}
	return stream.Send(&guestwirev1.ExecResponse{Kind: &guestwirev1.ExecResponse_Exit{Exit: statusMessage(status)}})
}

func specOf(m *guestwirev1.ExecStart) fleet.ExecSpec {
	return fleet.ExecSpec{Argv: m.Argv, Env: m.Env, Cwd: m.Cwd, User: m.User, Timeout: time.Duration(m.TimeoutMs) * time.Millisecond}
}

func statusMessage(st fleet.ExecStatus) *guestwirev1.ExitStatus {
	return &guestwirev1.ExitStatus{ExitCode: int32(st.ExitCode), Signal: st.Signal, TimedOut: st.TimedOut}
}

func stdoutMessage(p []byte) *guestwirev1.ExecResponse {
	return &guestwirev1.ExecResponse{Kind: &guestwirev1.ExecResponse_Stdout{Stdout: p}}
}

func stderrMessage(p []byte) *guestwirev1.ExecResponse {
	return &guestwirev1.ExecResponse{Kind: &guestwirev1.ExecResponse_Stderr{Stderr: p}}
}

// execSender hands messages to the one goroutine that may send them.
type execSender struct {
	ctx    context.Context
	frames chan execFrame
}

type execFrame struct {
	message *guestwirev1.ExecResponse
	ack     chan<- error
}

// do returns once the message is sent, so its bytes may be reused, and fails
// when the call has ended.
func (s *execSender) do(m *guestwirev1.ExecResponse, ack chan error) error {
	select {
	case s.frames <- execFrame{m, ack}:
		return <-ack
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// pump sends until the command has ended. After a failure it cancels the
// command and lets its writers fail.
func (s *execSender) pump(stream *execStream, cancel func()) error {
	var failed error
	for f := range s.frames {
		if failed == nil {
			if failed = stream.Send(f.message); failed != nil {
				cancel()
			}
		}
		f.ack <- failed
	}
	return failed
}

// execOutput is a command's standard output or error.
type execOutput struct {
	send    *execSender
	ack     chan error
	message func([]byte) *guestwirev1.ExecResponse
}

func (o *execOutput) Write(p []byte) (int, error) {
	if err := o.send.do(o.message(p), o.ack); err != nil {
		return 0, err
	}
	return len(p), nil
}

// execInput is a command's standard input: what the caller sends. It ends with
// the message that says so. A request that merely stops has no end, so that a
// command never takes a part of its input for the whole.
type execInput struct {
	stream *execStream
	body   *http.ResponseController
	closed chan struct{}
	rest   []byte
	eof    bool
}

func (in *execInput) Read(p []byte) (int, error) {
	for len(in.rest) == 0 {
		if in.eof {
			return 0, io.EOF
		}
		m, err := in.stream.Receive()
		switch {
		case err != nil:
			<-in.closed
			return 0, err
		case m.GetStdinEof() != nil:
			in.eof = true
		default:
			in.rest = m.GetStdin()
		}
	}
	n := copy(p, in.rest)
	in.rest = in.rest[n:]
	return n, nil
}

// Close ends a Read in progress by ending the request's body.
func (in *execInput) Close() error {
	select {
	case <-in.closed:
		return nil
	default:
		close(in.closed)
		return in.body.SetReadDeadline(time.Unix(1, 0))
	}
}

func bodyOf(ctx context.Context) *http.ResponseController {
	body, _ := ctx.Value(controllerKey{}).(*http.ResponseController)
	return body
}

// Drain stops the services in reverse order, then runs the command, whose
// output it drops.
func (s *guestService) Drain(ctx context.Context, req *connect.Request[guestwirev1.DrainRequest]) (*connect.Response[guestwirev1.DrainResponse], error) {
	res := &guestwirev1.DrainResponse{Status: &guestwirev1.ExitStatus{}}
	if err := s.services.Drain(ctx); err != nil {
		return nil, wireError(err)
	}
	if command := req.Msg.Command; command != "" {
		spec := fleet.ExecSpec{Argv: []string{"/bin/sh", "-lc", command}}
		status, err := s.runner.Run(ctx, spec, process.IO{}, nil)
		if err != nil {
			return nil, wireError(err)
		}
		res.Status = statusMessage(status)
	}
	return connect.NewResponse(res), nil
}

// wireError gives an error the code that the host's client turns back.
func wireError(err error) error {
	code := connect.CodeInternal
	switch fleet.CodeOf(err) {
	case fleet.CodeInvalidArgument:
		code = connect.CodeInvalidArgument
	case fleet.CodeConflict:
		code = connect.CodeFailedPrecondition
	case fleet.CodeUnavailable:
		code = connect.CodeResourceExhausted
	default:
		if errors.Is(err, context.DeadlineExceeded) {
			code = connect.CodeDeadlineExceeded
		} else if errors.Is(err, context.Canceled) {
			code = connect.CodeCanceled
		}
	}
	return connect.NewError(code, err)
}
