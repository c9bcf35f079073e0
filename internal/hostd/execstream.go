package hostd

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

type guestService struct{ h *Host }

type execStream = connect.BidiStream[hostwirev1.ExecRequest, hostwirev1.ExecResponse]

// Exec wires the stream to the guest. Nothing is buffered here beyond one
// message each way: a command that does not read its input, or a caller that
// does not read the output, holds up the other end through the connection's
// flow control.
func (s guestService) Exec(ctx context.Context, stream *execStream) error {
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

	out := &sender{ctx: ctx, stream: stream, free: make(chan struct{}, 1)}
	stdio := fleet.Stdio{Stdout: out.writer(stdoutFrame), Stderr: out.writer(stderrFrame)}
	var feed *io.PipeWriter
	if start.GetStdin() {
		var r *io.PipeReader
		r, feed = io.Pipe()
		defer r.CloseWithError(io.ErrClosedPipe)
		stdio.Stdin = r
	}
	var wg sync.WaitGroup
	wg.Go(func() { receive(stream, feed, cancel) })
	defer wg.Wait()
	defer hostwire.StopReading(ctx)
	if feed != nil {
		defer feed.CloseWithError(io.ErrClosedPipe)
	}

	status, err := s.h.Exec(ctx, ExecCall{
		Fence: fenceOf(start.GetFence()), Ref: refOf(start.GetRef()), Spec: execSpec(start), Stdio: stdio,
		Broken: func() { hostwire.LimitWriting(ctx) },
		Admitted: func() error {
			return out.send(&hostwirev1.ExecResponse{Kind: &hostwirev1.ExecResponse_Started{Started: &hostwirev1.ExecStarted{}}})
		},
	})
	if err != nil {
		return err
	}
	return out.send(&hostwirev1.ExecResponse{Kind: &hostwirev1.ExecResponse_Exit{Exit: hostwire.StatusToWire(status)}})
}

func execSpec(m *hostwirev1.ExecStart) fleet.ExecSpec {
	return fleet.ExecSpec{
		Argv: m.GetArgv(), Env: m.GetEnv(), Cwd: m.GetCwd(), User: m.GetUser(),
		Timeout: time.Duration(m.GetTimeoutMs()) * time.Millisecond,
	}
}

// receive feeds the command's standard input until its end, and ends the
// command when the caller breaks off. A stream that ends before the input
// does is broken: the command must not take part of its input for the whole.
func receive(stream *execStream, feed *io.PipeWriter, cancel context.CancelCauseFunc) {
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

// sender serializes the two output streams onto the one of the call.
type sender struct {
	ctx    context.Context //nolint:containedctx // the call's own, for the writers
	stream *execStream
	free   chan struct{}
}

func (s *sender) send(m *hostwirev1.ExecResponse) error {
	select {
	case s.free <- struct{}{}:
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
	defer func() { <-s.free }()
	return s.stream.Send(m)
}

func stdoutFrame(p []byte) *hostwirev1.ExecResponse {
	return &hostwirev1.ExecResponse{Kind: &hostwirev1.ExecResponse_Stdout{Stdout: p}}
}

func stderrFrame(p []byte) *hostwirev1.ExecResponse {
	return &hostwirev1.ExecResponse{Kind: &hostwirev1.ExecResponse_Stderr{Stderr: p}}
}

func (s *sender) writer(frame func([]byte) *hostwirev1.ExecResponse) io.Writer {
	return frameWriter{s, frame}
}

type frameWriter struct {
	s     *sender
	frame func([]byte) *hostwirev1.ExecResponse
}

func (w frameWriter) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		chunk := p[n:min(n+hostwire.MaxChunk, len(p))]
		if err := w.s.send(w.frame(chunk)); err != nil {
			return n, err
		}
		n += len(chunk)
	}
	return len(p), nil
}

// WriteFiles writes files into the guest.
func (s guestService) WriteFiles(ctx context.Context, req *connect.Request[hostwirev1.WriteFilesRequest]) (*connect.Response[hostwirev1.WriteFilesResponse], error) {
	m := req.Msg
	if err := s.h.WriteFiles(ctx, fenceOf(m.GetFence()), refOf(m.GetRef()), hostwire.FilesFromWire(m.GetFiles())); err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.WriteFilesResponse{}), nil
}
