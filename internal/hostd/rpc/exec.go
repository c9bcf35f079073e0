package rpc

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

// ExecStream is the stream of one exec.
type ExecStream = connect.BidiStream[hostwirev1.ExecRequest, hostwirev1.ExecResponse]

// Receive feeds the command's standard input until its end, and ends the
// command when the caller breaks off. A stream that ends before the input
// does is broken: the command must not take part of its input for the whole.
func Receive(stream *ExecStream, feed *io.PipeWriter, cancel context.CancelCauseFunc) {
	open := feed != nil
	for {
		m, err := stream.Receive()
		switch {
		case err != nil && (open || !errors.Is(err, io.EOF)):
			cancel(err)
			return
		case err != nil:
			return // the caller sends no more; it still listens
		case !open:
		case m.GetStdinEof() != nil:
			_ = feed.Close() // never fails
			open = false
		case len(m.GetStdin()) > 0:
			// A command that closed its input lets the rest fall away.
			_, _ = feed.Write(m.GetStdin())
		}
	}
}

// Sender serializes a command's two output streams onto the one of the call.
type Sender struct {
	ctx    context.Context //nolint:containedctx // the call's own, for the writers
	stream *ExecStream
	free   chan struct{}
}

// NewSender makes a sender whose writes end with ctx.
func NewSender(ctx context.Context, stream *ExecStream) *Sender {
	return &Sender{ctx: ctx, stream: stream, free: make(chan struct{}, 1)}
}

// Send sends one message.
func (s *Sender) Send(m *hostwirev1.ExecResponse) error {
	select {
	case s.free <- struct{}{}:
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
	defer func() { <-s.free }()
	return s.stream.Send(m)
}

// Started says that the command was admitted.
func (s *Sender) Started() error {
	return s.Send(&hostwirev1.ExecResponse{Kind: &hostwirev1.ExecResponse_Started{Started: &hostwirev1.ExecStarted{}}})
}

// Exit says how the command ended.
func (s *Sender) Exit(status fleet.ExecStatus) error {
	return s.Send(&hostwirev1.ExecResponse{Kind: &hostwirev1.ExecResponse_Exit{Exit: hostwire.StatusToWire(status)}})
}

// Stdout is where the command's standard output goes.
func (s *Sender) Stdout() io.Writer {
	return frameWriter{s, func(p []byte) *hostwirev1.ExecResponse {
		return &hostwirev1.ExecResponse{Kind: &hostwirev1.ExecResponse_Stdout{Stdout: p}}
	}}
}

// Stderr is where the command's standard error goes.
func (s *Sender) Stderr() io.Writer {
	return frameWriter{s, func(p []byte) *hostwirev1.ExecResponse {
		return &hostwirev1.ExecResponse{Kind: &hostwirev1.ExecResponse_Stderr{Stderr: p}}
	}}
}

type frameWriter struct {
	s     *Sender
	frame func([]byte) *hostwirev1.ExecResponse
}

func (w frameWriter) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		chunk := p[n:min(n+hostwire.MaxChunk, len(p))]
		if err := w.s.Send(w.frame(chunk)); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return len(p), nil
}

// Call is one exec of a caller's.
type Call struct {
	Start *hostwirev1.ExecStart
	Spec  fleet.ExecSpec
	Stdio fleet.Stdio
	// Admitted says that nothing of the host's refuses the command, Broken that
	// the VM is to end before the command has.
	Admitted func() error
	Broken   func()
}

// Exec wires a stream to run. Nothing is buffered here beyond one message each
// way: a command that does not read its input, or a caller that does not read
// the output, holds up the other end through the connection's flow control.
func Exec(ctx context.Context, stream *ExecStream, run func(context.Context, Call) (fleet.ExecStatus, error)) error {
	first, err := stream.Receive()
	if err != nil {
		return fleet.Errorf(fleet.CodeInvalidArgument, "the exec ended before it began")
	}
	start := first.GetStart()
	if start == nil {
		return fleet.Errorf(fleet.CodeInvalidArgument, "the first message of an exec is not its start")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	out := NewSender(ctx, stream)
	stdio := fleet.Stdio{Stdout: out.Stdout(), Stderr: out.Stderr()}
	var feed *io.PipeWriter
	if start.GetStdin() {
		var r *io.PipeReader
		r, feed = io.Pipe()
		defer r.CloseWithError(io.ErrClosedPipe)
		stdio.Stdin = r
	}
	var wg sync.WaitGroup
	wg.Go(func() { Receive(stream, feed, cancel) })
	defer wg.Wait()
	defer hostwire.StopReading(ctx)
	if feed != nil {
		defer feed.CloseWithError(io.ErrClosedPipe)
	}
	status, err := run(ctx, Call{
		Start: start, Stdio: stdio, Admitted: out.Started, Broken: func() { hostwire.LimitWriting(ctx) },
		Spec: fleet.ExecSpec{
			Argv: start.GetArgv(), Env: start.GetEnv(), Cwd: start.GetCwd(), User: start.GetUser(),
			Timeout: time.Duration(start.GetTimeoutMs()) * time.Millisecond,
		},
	})
	if err != nil {
		return err
	}
	return out.Exit(status)
}
