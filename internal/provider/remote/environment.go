package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/uid"
)

// environment is a handle on a VM; it holds nothing open.
type environment struct {
	p   *Provider
	ref provider.Ref
}

// Open returns a handle without asking the host.
func (p *Provider) Open(ref provider.Ref) provider.Environment { return &environment{p, ref} }

// Name returns the VM id.
func (e *environment) Name() string { return e.ref.ID }

// URL is empty: the guest is reached through the host agent alone.
func (e *environment) URL() string { return "" }

// call names an operation on the life: opID, or a fresh one if that is empty.
func (e *environment) call(opID string) *hostwirev1.Ref {
	r := wireRef(e.ref)
	if r.OperationId = opID; opID == "" {
		r.OperationId = uid.New()
	}
	return r
}

// Upload writes files into the guest.
func (e *environment) Upload(ctx context.Context, files []fleet.GuestFile) error {
	ctx, cancel := context.WithTimeout(ctx, e.p.cfg.ChangeTimeout)
	defer cancel()
	req := &hostwirev1.WriteFilesRequest{Ref: e.call(""), Files: hostwire.FilesToWire(files)}
	return e.p.change(ctx, func(f *hostwirev1.Fence) error {
		req.Fence = f
		_, err := e.p.guests.WriteFiles(ctx, connect.NewRequest(req))
		return callError(ctx, err)
	})
}

// Drain stops the guest's services and runs command if it is not empty. The
// handle's operation id, if it has one, makes a repeat get the first answer.
func (e *environment) Drain(ctx context.Context, command string) (status fleet.ExecStatus, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.p.cfg.ChangeTimeout)
	defer cancel()
	req := &hostwirev1.DrainVMRequest{Ref: e.call(e.ref.OpID), Command: command}
	err = e.p.change(ctx, func(f *hostwirev1.Fence) error {
		req.Fence = f
		resp, err := e.p.vms.DrainVM(ctx, connect.NewRequest(req))
		if err == nil {
			status = hostwire.StatusFromWire(resp.Msg.GetStatus())
		}
		return callError(ctx, err)
	})
	return status, err
}

// ExecStream runs a command with its streams wired. When ctx ends the host
// kills the command. A goroutine copies Stdin; one that is blocked in its Read
// when the command has ended stays until that Read returns.
func (e *environment) ExecStream(ctx context.Context, spec fleet.ExecSpec, stdio fleet.Stdio) (status fleet.ExecStatus, err error) {
	err = e.p.change(ctx, func(f *hostwirev1.Fence) error {
		status, err = e.exec(ctx, f, spec, stdio)
		return err
	})
	return status, err
}

type execStream = connect.BidiStreamForClient[hostwirev1.ExecRequest, hostwirev1.ExecResponse]

func (e *environment) exec(ctx context.Context, f *hostwirev1.Fence, spec fleet.ExecSpec, stdio fleet.Stdio) (fleet.ExecStatus, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream := e.p.guests.Exec(ctx)
	// The transport notices the end of ctx only once the request has ended.
	defer context.AfterFunc(ctx, func() { _ = stream.CloseRequest() })()
	start := &hostwirev1.ExecStart{
		Fence: f, Ref: e.call(""), Argv: spec.Argv, Env: spec.Env, Cwd: spec.Cwd, User: spec.User,
		TimeoutMs: milliseconds(spec.Timeout), Stdin: stdio.Stdin != nil,
	}
	err := stream.Send(&hostwirev1.ExecRequest{Kind: &hostwirev1.ExecRequest_Start{Start: start}})
	if err != nil && !errors.Is(err, io.EOF) { // io.EOF: the reason is on the receiving side
		return fleet.ExecStatus{}, callError(ctx, err)
	}
	if stdio.Stdin == nil {
		_ = stream.CloseRequest() // fails only with the call, which Receive tells
	}
	status, err := e.receive(ctx, cancel, stream, stdio)
	cancel(nil) // ends the copy of standard input, if it is sending
	_ = stream.CloseResponse()
	return status, err
}

// receive starts the copy of standard input once the host has admitted the
// command, so that nothing of it is lost to a refusal, and writes output as it
// comes.
func (e *environment) receive(ctx context.Context, cancel context.CancelCauseFunc, stream *execStream, stdio fleet.Stdio) (fleet.ExecStatus, error) {
	for {
		m, err := stream.Receive()
		if err != nil {
			if cause := context.Cause(ctx); errors.As(cause, new(*outputError)) {
				return fleet.ExecStatus{}, cause
			}
			if errors.Is(err, io.EOF) {
				err = errors.New("the stream ended without an exit")
			}
			return fleet.ExecStatus{}, callError(ctx, err)
		}
		switch {
		case m.GetExit() != nil:
			return hostwire.StatusFromWire(m.GetExit()), nil
		case m.GetStarted() != nil && stdio.Stdin != nil:
			go feed(cancel, stream, stdio.Stdin) // ends with the stream or the reader
		case len(m.GetStdout()) > 0:
			err = write(stdio.Stdout, m.GetStdout())
		case len(m.GetStderr()) > 0:
			err = write(stdio.Stderr, m.GetStderr())
		}
		if err != nil {
			return fleet.ExecStatus{}, err
		}
	}
}

type outputError struct{ err error }

func (e *outputError) Error() string { return fmt.Sprintf("stream of the command: %v", e.err) }
func (e *outputError) Unwrap() error { return e.err }

func write(w io.Writer, p []byte) error {
	if w == nil {
		return nil
	}
	if _, err := w.Write(p); err != nil {
		return &outputError{err}
	}
	return nil
}

// feed copies standard input to its end. A reader that fails ends the
// command: it must not take part of its input for the whole.
func feed(cancel context.CancelCauseFunc, stream *execStream, r io.Reader) {
	buf := make([]byte, hostwire.MaxChunk)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			m := &hostwirev1.ExecRequest{Kind: &hostwirev1.ExecRequest_Stdin{Stdin: buf[:n]}}
			if stream.Send(m) != nil {
				return // the receiving side knows why
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			_ = stream.Send(&hostwirev1.ExecRequest{Kind: &hostwirev1.ExecRequest_StdinEof{StdinEof: &hostwirev1.StdinEOF{}}})
			_ = stream.CloseRequest()
			return
		case err != nil:
			cancel(&outputError{err})
			return
		}
	}
}

// milliseconds rounds up, so that a short timeout is not none.
func milliseconds(d time.Duration) int64 {
	return (d + time.Millisecond - 1).Milliseconds()
}
