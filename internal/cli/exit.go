package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/fusevm/fuse/internal/fleet"
)

// Exit codes of every command. run and exec pass the command's own code.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitNotFound    = 3
	ExitDeadline    = 124
	ExitInterrupted = 130
)

// ExitError carries an exit code out of a command. With no error inside, it
// prints nothing: the command's own output said it all.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the error inside.
func (e *ExitError) Unwrap() error { return e.Err }

func usagef(format string, args ...any) error {
	return &ExitError{Code: ExitUsage, Err: fmt.Errorf(format, args...)}
}

// ExitCode maps an error from a command to the process's exit code.
func ExitCode(err error) int {
	var exit *ExitError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &exit):
		return exit.Code
	case errors.Is(err, context.Canceled):
		return ExitInterrupted
	case errors.Is(err, context.DeadlineExceeded), fleet.CodeOf(err) == fleet.CodeDeadlineExceeded:
		return ExitDeadline
	case fleet.CodeOf(err) == fleet.CodeNotFound:
		return ExitNotFound
	case fleet.CodeOf(err) == fleet.CodeInvalidArgument:
		return ExitUsage
	}
	return ExitFailed
}
