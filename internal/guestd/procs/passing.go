package procs

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"syscall"

	"github.com/fusevm/fuse/internal/fleet"
)

// passingPrefix begins the ids of processes that belong to one call.
const passingPrefix = "exec-"

// Passing is a process that belongs to one caller: it alone writes the input
// and reads the output, which waits for it, and it ends the process. Others see
// it and can signal or remove it.
type Passing struct {
	t    *Table
	p    *proc
	sent int64 // of the input
}

// Pass starts a process for one caller, which closes what it gets. Its output
// waits in memory of its own, so that those that are kept never keep it out.
func (t *Table) Pass(ctx context.Context, command fleet.ExecSpec, input bool) (*Passing, error) {
	spec := Spec{ID: passingPrefix + strings.ToLower(rand.Text()), Command: command, Input: input, Hold: true, passing: true}
	x := &Passing{t: t}
	var err error
	if x.p, _, err = t.begin(ctx, spec); err != nil {
		if x.p != nil { // nobody will come for it
			x.Close()
		}
		return nil, err
	}
	return x, nil
}

// PID is that of the process; zero if it could not be started.
func (x *Passing) PID() int { return x.p.info().PID }

// SendInput adds to the input and returns once it is taken.
func (x *Passing) SendInput(ctx context.Context, data []byte, eof bool) error {
	taken, err := x.p.input.send(ctx, "", x.sent, data, eof)
	x.sent = taken
	return err
}

// Follow hands out all output and returns when the process has ended. One that
// somebody else ended counts as killed.
func (x *Passing) Follow(ctx context.Context, piece func(Piece) error) (fleet.ExecStatus, error) {
	if _, err := x.p.copyOut(ctx, Follow{Wait: true}, Sink{Piece: piece}); err != nil {
		return fleet.ExecStatus{}, err
	}
	info := x.p.info()
	switch {
	case errors.Is(info.Failure, errRemoved):
		return fleet.ExecStatus{ExitCode: int(exitKilled), Signal: "KILL"}, nil
	case errors.Is(info.Failure, errClosing):
		return fleet.ExecStatus{}, fleet.Errorf(fleet.CodeUnavailable, "the machine is shutting down")
	default:
		return info.Status, info.Failure
	}
}

// Close ends the process with all it started, if it has not ended, and forgets
// it.
func (x *Passing) Close() {
	x.p.cancel(errRemoved)
	<-x.p.done // a runner gives up in time on what cannot be killed
	x.t.forget(x.p)
}

// errPassing refuses what only the caller of a process may do.
func errPassing(id string) error {
	return fleet.Errorf(fleet.CodeConflict, "process %s belongs to the call that runs it, which alone has its input and output", id).
		With(fleet.DetailReason, "passing").With(fleet.DetailRemedy, "start a process of its own to follow it from more than one place")
}

// exitKilled is the exit code of a process that was ended from outside.
const exitKilled = 128 + int32(syscall.SIGKILL)
