package procs

import (
	"context"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/process"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1/guestwirev1connect"
)

// quietAfter is how long a followed process may be silent before its reader is
// told that it is still there.
const quietAfter = 10 * time.Second

// maxSendInput bounds one piece of input, in bytes.
const maxSendInput = 1 << 20

// Service serves a table in guestwire.
type Service struct{ Table *Table }

var _ guestwirev1connect.ProcessesHandler = Service{}

// StartProcess starts a process and returns once it runs.
func (s Service) StartProcess(ctx context.Context, req *connect.Request[guestwirev1.StartProcessRequest]) (*connect.Response[guestwirev1.StartProcessResponse], error) {
	m := req.Msg
	c := m.GetCommand()
	spec := Spec{
		ID: m.GetId(), Input: c.GetStdin(), Keep: m.GetKeepBytes(), Hold: m.GetHold(), Linger: millis(m.GetLingerMs()),
		Command: fleet.ExecSpec{Argv: c.GetArgv(), Env: c.GetEnv(), Cwd: c.GetCwd(), User: c.GetUser(), Timeout: millis(c.GetTimeoutMs())},
	}
	if t := m.GetTerminal(); t != nil {
		spec.Terminal = sizeOf(t)
		if spec.Command.Env["TERM"] == "" {
			env := map[string]string{"TERM": "xterm-256color"}
			for k, v := range spec.Command.Env {
				env[k] = v
			}
			spec.Command.Env = env
		}
	}
	info, err := s.Table.Start(ctx, spec)
	if err != nil {
		return nil, guestwire.Refuse(err)
	}
	return connect.NewResponse(&guestwirev1.StartProcessResponse{Process: messageOf(info)}), nil
}

func millis(ms int64) time.Duration { return time.Duration(ms) * time.Millisecond }

func sizeOf(t *guestwirev1.Terminal) *process.Size {
	const most = 1<<16 - 1
	return &process.Size{Rows: uint16(min(t.GetRows(), most)), Cols: uint16(min(t.GetCols(), most))}
}

func messageOf(i Info) *guestwirev1.ProcessInfo {
	m := &guestwirev1.ProcessInfo{
		Id: i.ID, Pid: int32(i.PID), Argv: i.Argv, StartedUnixMs: i.Started.UnixMilli(), Terminal: i.Terminal, Failure: failureText(i.Failure),
		Input: i.Input, TakesInput: i.HasInput,
		Stdout: &guestwirev1.Kept{Start: i.Out[stdout].Start, End: i.Out[stdout].End},
		Stderr: &guestwirev1.Kept{Start: i.Out[stderr].Start, End: i.Out[stderr].End},
	}
	if !i.Ended.IsZero() {
		m.EndedUnixMs = i.Ended.UnixMilli()
		m.Exit = &guestwirev1.ExitStatus{ExitCode: int32(i.Status.ExitCode), Signal: i.Status.Signal, TimedOut: i.Status.TimedOut}
		if i.Failure != nil {
			m.Exit.ExitCode, m.Exit.Signal = exitKilled, "KILL"
		}
	}
	return m
}

// ListProcesses lists those that run or are kept, oldest first.
func (s Service) ListProcesses(context.Context, *connect.Request[guestwirev1.ListProcessesRequest]) (*connect.Response[guestwirev1.ListProcessesResponse], error) {
	res := &guestwirev1.ListProcessesResponse{}
	for _, i := range s.Table.List() {
		res.Processes = append(res.Processes, messageOf(i))
	}
	return connect.NewResponse(res), nil
}

// WaitProcess returns once the process has ended, or after a time.
func (s Service) WaitProcess(ctx context.Context, req *connect.Request[guestwirev1.WaitProcessRequest]) (*connect.Response[guestwirev1.WaitProcessResponse], error) {
	info, err := s.Table.Wait(ctx, req.Msg.GetId(), millis(req.Msg.GetWaitMs()))
	if err != nil {
		return nil, guestwire.Refuse(err)
	}
	return connect.NewResponse(&guestwirev1.WaitProcessResponse{Process: messageOf(info)}), nil
}

// SignalProcess sends a signal.
func (s Service) SignalProcess(_ context.Context, req *connect.Request[guestwirev1.SignalProcessRequest]) (*connect.Response[guestwirev1.SignalProcessResponse], error) {
	err := s.Table.Signal(req.Msg.GetId(), syscall.Signal(req.Msg.GetSignal()), req.Msg.GetTree())
	return connect.NewResponse(&guestwirev1.SignalProcessResponse{}), guestwire.Refuse(err)
}

// ResizeProcess changes the size of a process's terminal.
func (s Service) ResizeProcess(_ context.Context, req *connect.Request[guestwirev1.ResizeProcessRequest]) (*connect.Response[guestwirev1.ResizeProcessResponse], error) {
	err := s.Table.Resize(req.Msg.GetId(), *sizeOf(req.Msg.GetTerminal()))
	return connect.NewResponse(&guestwirev1.ResizeProcessResponse{}), guestwire.Refuse(err)
}

// AdjustProcess changes what happens when nobody follows a process.
func (s Service) AdjustProcess(_ context.Context, req *connect.Request[guestwirev1.AdjustProcessRequest]) (*connect.Response[guestwirev1.AdjustProcessResponse], error) {
	err := s.Table.Adjust(req.Msg.GetId(), req.Msg.GetHold(), millis(req.Msg.GetLingerMs()))
	return connect.NewResponse(&guestwirev1.AdjustProcessResponse{}), guestwire.Refuse(err)
}

// SendInput adds to a process's standard input.
func (s Service) SendInput(ctx context.Context, req *connect.Request[guestwirev1.SendInputRequest]) (*connect.Response[guestwirev1.SendInputResponse], error) {
	m := req.Msg
	if len(m.GetData()) > maxSendInput {
		return nil, guestwire.Refuse(fleet.Errorf(fleet.CodePayloadTooLarge, "a piece of input has more than %d bytes", maxSendInput))
	}
	taken, err := s.Table.SendInputAs(ctx, m.GetId(), m.GetWriter(), m.GetOffset(), m.GetData(), m.GetEof())
	if err != nil {
		return nil, guestwire.Refuse(err)
	}
	return connect.NewResponse(&guestwirev1.SendInputResponse{Offset: taken, Writer: m.GetWriter()}), nil
}

// FollowOutput sends output from given offsets on.
func (s Service) FollowOutput(ctx context.Context, req *connect.Request[guestwirev1.FollowOutputRequest], out *connect.ServerStream[guestwirev1.FollowOutputResponse]) error {
	m := req.Msg
	quiet := func() error {
		return out.Send(&guestwirev1.FollowOutputResponse{Kind: &guestwirev1.FollowOutputResponse_Quiet{Quiet: &guestwirev1.OutputQuiet{}}})
	}
	if m.GetFollow() { // the answer begins now, whenever there is output
		if err := quiet(); err != nil {
			return err
		}
	}
	follow := Follow{Stdout: m.GetStdout(), Stderr: m.GetStderr(), Limit: m.GetLimit(), Wait: m.GetFollow(), Quiet: quietAfter}
	ended, err := s.Table.Follow(ctx, m.GetId(), follow, Sink{
		Piece: func(p Piece) error {
			return out.Send(&guestwirev1.FollowOutputResponse{Kind: &guestwirev1.FollowOutputResponse_Piece{
				Piece: &guestwirev1.OutputPiece{Stream: int32(p.Stream), Offset: p.Offset, Data: p.Data},
			}})
		},
		Quiet: quiet,
	})
	if err != nil {
		return guestwire.Refuse(err)
	}
	if ended == nil {
		return nil
	}
	return out.Send(&guestwirev1.FollowOutputResponse{Kind: &guestwirev1.FollowOutputResponse_End{End: messageOf(*ended)}})
}

// RemoveProcess ends a process with all that it started and forgets it.
func (s Service) RemoveProcess(ctx context.Context, req *connect.Request[guestwirev1.RemoveProcessRequest]) (*connect.Response[guestwirev1.RemoveProcessResponse], error) {
	err := s.Table.Remove(ctx, req.Msg.GetId())
	return connect.NewResponse(&guestwirev1.RemoveProcessResponse{}), guestwire.Refuse(err)
}
