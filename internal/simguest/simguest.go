// Package simguest plays a guest without a machine: a small set of commands
// that behave the same every time, for the sim driver and the fake provider.
// What it does not know it refuses, so that nothing seems to have run.
package simguest

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Machine is what commands see of the machine that they run in.
type Machine struct {
	Hostname string
	// Read returns the file at an absolute path; ok is false if there is none.
	Read func(path string) (data []byte, ok bool, err error)
	// Done closes when the machine stops; nil: never.
	Done <-chan struct{}
}

// ErrStopped says that the machine stopped under a command.
var ErrStopped = errors.New("the machine has stopped")

var errTimeout = errors.New("the command's time is over")

// Run runs one command as driver.Guest's Exec does. Standard input that can
// be closed is closed when the command has to end.
func Run(ctx context.Context, m Machine, spec fleet.ExecSpec, stdio fleet.Stdio) (fleet.ExecStatus, error) {
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if spec.Timeout > 0 {
		timer := time.AfterFunc(spec.Timeout, func() { cancel(errTimeout) })
		defer timer.Stop()
	}
	p := newProcess(inner, m, spec, stdio)
	defer context.AfterFunc(inner, p.closeStdin)()
	code, err := p.exec(spec.Argv)
	var ended exitError
	switch {
	case errors.As(err, &ended):
		return fleet.ExecStatus{ExitCode: int(ended)}, nil
	case ctx.Err() != nil:
		return fleet.ExecStatus{}, context.Cause(ctx)
	case errors.Is(context.Cause(inner), errTimeout):
		return fleet.ExecStatus{ExitCode: 124, Signal: "KILL", TimedOut: true}, nil
	case err != nil && !errors.Is(err, ErrStopped) && fleet.CodeOf(err) == fleet.CodeInternal:
		return fleet.ExecStatus{}, fmt.Errorf("streams of the command: %w", err)
	case err != nil:
		return fleet.ExecStatus{}, err
	}
	return fleet.ExecStatus{ExitCode: code}, nil
}

// over says why a command has to end, nil if it need not.
func (p *process) over() error {
	select {
	case <-p.m.Done:
		return ErrStopped
	default:
		return p.ctx.Err()
	}
}

// File fixes what a file that is to be written needs: an absolute, clean path
// and its mode.
func File(f fleet.GuestFile) (fleet.GuestFile, error) {
	if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" || strings.ContainsRune(f.Path, 0) {
		return f, fleet.Errorf(fleet.CodeInvalidArgument, "%.120q is not an absolute, clean path", f.Path)
	}
	switch {
	case f.Mode != 0:
	case strings.HasPrefix(f.Path, fleet.ReservedGuestDir+"/"):
		f.Mode = 0o600
	default:
		f.Mode = 0o644
	}
	return f, nil
}
