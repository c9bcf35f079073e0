package hostd

import (
	"context"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/rpc"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

type guestService struct{ h *Host }

// Exec wires the stream to the guest. Nothing is buffered here beyond one
// message each way: a command that does not read its input, or a caller that
// does not read the output, holds up the other end through the connection's
// flow control.
func (s guestService) Exec(ctx context.Context, stream *rpc.ExecStream) error {
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

	out := rpc.NewSender(ctx, stream)
	stdio := fleet.Stdio{Stdout: out.Stdout(), Stderr: out.Stderr()}
	var feed *io.PipeWriter
	if start.GetStdin() {
		var r *io.PipeReader
		r, feed = io.Pipe()
		defer r.CloseWithError(io.ErrClosedPipe)
		stdio.Stdin = r
	}
	var wg sync.WaitGroup
	wg.Go(func() { rpc.Receive(stream, feed, cancel) })
	defer wg.Wait()
	defer hostwire.StopReading(ctx)
	if feed != nil {
		defer feed.CloseWithError(io.ErrClosedPipe)
	}

	status, err := s.h.Exec(ctx, ExecCall{
		Fence: fenceOf(start.GetFence()), Ref: refOf(start.GetRef()), Spec: execSpec(start), Stdio: stdio,
		Broken: func() { hostwire.LimitWriting(ctx) }, Admitted: out.Started,
	})
	if err != nil {
		return err
	}
	return out.Exit(status)
}

func execSpec(m *hostwirev1.ExecStart) fleet.ExecSpec {
	return fleet.ExecSpec{
		Argv: m.GetArgv(), Env: m.GetEnv(), Cwd: m.GetCwd(), User: m.GetUser(),
		Timeout: time.Duration(m.GetTimeoutMs()) * time.Millisecond,
	}
}

// WriteFiles writes files into the guest.
func (s guestService) WriteFiles(ctx context.Context, req *connect.Request[hostwirev1.WriteFilesRequest]) (*connect.Response[hostwirev1.WriteFilesResponse], error) {
	m := req.Msg
	if err := s.h.WriteFiles(ctx, fenceOf(m.GetFence()), refOf(m.GetRef()), hostwire.FilesFromWire(m.GetFiles())); err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.WriteFilesResponse{}), nil
}
