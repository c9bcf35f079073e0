package guestd

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/process"
	"github.com/fusevm/fuse/internal/guestd/procs"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
)

// The protocol's pieces are the runner's: a build with unequal sizes fails.
var _ = [1]struct{}{}[process.ChunkSize-guestwire.MaxChunk]

type execStream = connect.BidiStream[guestwirev1.ExecRequest, guestwirev1.ExecResponse]

// Exec runs one command as a process that belongs to this call, whose tree is
// killed when the caller goes away.
func (s *guestService) Exec(ctx context.Context, stream *execStream) error {
	first, err := stream.Receive()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return connect.NewError(connect.CodeInvalidArgument, errors.New("the first message of an exec must be its start"))
	}
	defer s.once.Do(func() { close(s.used) })
	p, err := s.procs.Pass(ctx, specOf(start), start.Stdin)
	if err != nil {
		return wireError(err)
	}
	defer p.Close()
	if pid := p.PID(); pid != 0 {
		if err := stream.Send(&guestwirev1.ExecResponse{Kind: &guestwirev1.ExecResponse_Started{Started: &guestwirev1.ExecStarted{Pid: int32(pid)}}}); err != nil {
			return err
		}
	}
	if start.Stdin {
		feeding, stop := context.WithCancel(ctx)
		var fed sync.WaitGroup
		fed.Go(func() { feed(feeding, stream, p) })
		defer func() {
			stop()
			stopReading(ctx)
			fed.Wait()
		}()
	}
	status, err := p.Follow(ctx, func(o procs.Piece) error {
		m := &guestwirev1.ExecResponse{Kind: &guestwirev1.ExecResponse_Stdout{Stdout: o.Data}}
		if o.Stream == procs.Stderr {
			m.Kind = &guestwirev1.ExecResponse_Stderr{Stderr: o.Data}
		}
		return stream.Send(m)
	})
	if err != nil {
		return wireError(err)
	}
	return stream.Send(&guestwirev1.ExecResponse{Kind: &guestwirev1.ExecResponse_Exit{Exit: statusMessage(status)}})
}

// feed hands the caller's input on. It ends with the message that says so. A
// request that merely stops has no end, so that a command never takes a part of
// its input for the whole.
func feed(ctx context.Context, stream *execStream, p *procs.Passing) {
	for {
		m, err := stream.Receive()
		if err != nil {
			return
		}
		eof := m.GetStdinEof() != nil
		if p.SendInput(ctx, m.GetStdin(), eof) != nil || eof {
			return
		}
	}
}

// stopReading ends a Receive in progress by ending the request's body.
func stopReading(ctx context.Context) {
	if body, ok := ctx.Value(controllerKey{}).(*http.ResponseController); ok {
		_ = body.SetReadDeadline(time.Unix(1, 0)) // it has ended already
	}
}

func specOf(m *guestwirev1.ExecStart) fleet.ExecSpec {
	return fleet.ExecSpec{Argv: m.Argv, Env: m.Env, Cwd: m.Cwd, User: m.User, Timeout: time.Duration(m.TimeoutMs) * time.Millisecond}
}

func statusMessage(st fleet.ExecStatus) *guestwirev1.ExitStatus {
	return &guestwirev1.ExitStatus{ExitCode: int32(st.ExitCode), Signal: st.Signal, TimedOut: st.TimedOut}
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
