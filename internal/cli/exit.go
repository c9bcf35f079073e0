package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fusevm/fuse/internal/api/client"
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
	case errors.Is(err, context.DeadlineExceeded):
		return ExitDeadline
	}
	code := fleet.CodeOf(err)
	var answer *client.Error
	if errors.As(err, &answer) {
		code = fleet.Code(answer.Code)
	}
	switch code {
	case fleet.CodeDeadlineExceeded:
		return ExitDeadline
	case fleet.CodeNotFound:
		return ExitNotFound
	case fleet.CodeInvalidArgument:
		return ExitUsage
	}
	return ExitFailed
}

// describe renders an error for a person: the message, then its details, then
// the request id. It is empty for an error that has been told already.
func describe(err error) string {
	var exit *ExitError
	if errors.As(err, &exit) && exit.Err == nil {
		return ""
	}
	if errors.Is(err, context.Canceled) {
		return "interrupted"
	}
	var b strings.Builder
	b.WriteString("error: " + err.Error())
	var details map[string]string
	var ours *fleet.Error
	var answer *client.Error
	switch {
	case errors.As(err, &answer):
		details = answer.Details
	case errors.As(err, &ours):
		details = ours.Details
	}
	keys := slices.Sorted(maps.Keys(details))
	if i := slices.Index(keys, fleet.DetailRemedy); i >= 0 { // last, where the eye rests
		keys = append(slices.Delete(keys, i, i+1), fleet.DetailRemedy)
	}
	for _, k := range keys {
		fmt.Fprintf(&b, "\n  %s: %s", k, strings.ReplaceAll(details[k], "\n", "\n    "))
	}
	if answer != nil && answer.Code != "" {
		fmt.Fprintf(&b, "\n  code: %s", answer.Code)
		if answer.RequestID != "" {
			fmt.Fprintf(&b, " (request %s)", answer.RequestID)
		}
	}
	return harmless(b.String())
}
