// Package refusal words what the host agent refuses and why its work broke off.
package refusal

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/journal"
)

// Causes with which a life's context, or the agent's work, ends.
var (
	ErrDestroyed = errors.New("the environment is being destroyed")
	ErrStopped   = errors.New("the environment has stopped")
	ErrClosing   = errors.New("the host agent is shutting down")
)

// Closing refuses new work, or says why work broke off with these causes.
func Closing(causes ...error) error {
	return fleet.Wrap(fleet.CodeUnavailable, errors.Join(append(causes, ErrClosing)...), "the host agent is shutting down").
		With(fleet.DetailRemedy, "try again once it is back")
}

// Conflict refuses what something stands in the way of.
func Conflict(format string, args ...any) *fleet.Error {
	return fleet.Errorf(fleet.CodeConflict, format, args...)
}

// NotFound says that the host has no such VM.
func NotFound(vmID string) error {
	return fleet.Errorf(fleet.CodeNotFound, "%w: this host has no %s", fleet.ErrVMNotFound, vmID)
}

// Stopped refuses what needs a machine, of a VM that has none any more.
func Stopped(vmID, cause string) error {
	return fleet.Errorf(fleet.CodeConflict, "%w: it has stopped (%s)", fleet.ErrVMNotRunning, cause).With(fleet.DetailReason, cause).
		With(fleet.DetailRemedy, "see how it ended, fuse explain "+vmID+", and create it anew")
}

// NotRunning refuses what needs a machine, of a VM in another phase.
func NotRunning(vmID, phase string) error {
	remedy := "try again in a moment"
	switch phase {
	case "paused":
		remedy = "resume it first: fuse resume " + vmID
	case "running", "condemned": // it is about to end
		remedy = "create it anew, once it is destroyed"
	}
	return fleet.Errorf(fleet.CodeConflict, "%w: it is %s", fleet.ErrVMNotRunning, phase).With(fleet.DetailReason, phase).
		With(fleet.DetailRemedy, remedy)
}

// Unreadable refuses to touch what nobody knows the owner of.
func Unreadable(uid string) error {
	return fleet.Errorf(fleet.CodeForbidden, "the owner of uid %s cannot be read on this host", uid).
		With(fleet.DetailReason, "foreign").
		With(fleet.DetailRemedy, "look at its directory on the host, and remove it there if it is yours")
}

// Create tells why a create was undone, in words for the caller; life is the
// context of the VM, ctx that of the work.
func Create(ctx, life context.Context, err error) error {
	switch {
	case errors.Is(context.Cause(life), ErrDestroyed):
		return fleet.Wrap(fleet.CodeConflict, err, "the environment was destroyed while it was being created").
			With(fleet.DetailReason, "destroyed")
	case errors.Is(context.Cause(life), ErrClosing):
		return Closing(err)
	case ctx.Err() != nil:
		return fleet.Wrap(fleet.CodeDeadlineExceeded, err, "the environment did not come up in time")
	}
	if fe := told(err); fe != nil {
		return fe
	}
	return own("boot the environment", err)
}

// Remove tells why a removal did not work out.
func Remove(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fleet.Wrap(fleet.CodeDeadlineExceeded, err, "the environment could not be destroyed in time")
	}
	if fe := told(err); fe != nil {
		return fe
	}
	return fleet.Errorf(fleet.CodeInternal, "destroy the environment: %w", err)
}

// Guest tells why a call into a guest broke off: the VM's end first. inst may be
// nil.
func Guest(ctx, life context.Context, inst driver.Instance, err error) error {
	if fe := why(ctx, life, inst, err); fe != nil {
		return fe
	}
	return fleet.Wrap(fleet.CodeUnavailable, errors.Join(fleet.ErrGuestUnavailable, err), "the guest does not answer")
}

// Work tells why an operation on a VM broke off, as Guest does; what has no
// words for callers is the host's own failure then, not the guest's silence.
func Work(ctx, life context.Context, inst driver.Instance, verb string, err error) error {
	if fe := why(ctx, life, inst, err); fe != nil {
		return fe
	}
	return own(verb+" of the environment", err)
}

// own is a failure of the host itself: a full disk, or what it has no words for.
func own(what string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return journal.DiskFull(err)
	}
	return fleet.Errorf(fleet.CodeInternal, "%s: %w", what, err)
}

// why is what is known of the end of a VM's call or operation; nil: nothing
// beyond err.
func why(ctx, life context.Context, inst driver.Instance, err error) error {
	switch {
	case errors.Is(context.Cause(life), ErrDestroyed):
		return notRunning("it is being destroyed", "destroyed", err)
	case errors.Is(context.Cause(life), ErrClosing):
		return Closing(err)
	}
	if inst != nil {
		select {
		case <-inst.Done():
			return notRunning("it has stopped ("+inst.Exit().Cause+")", inst.Exit().Cause, err)
		default:
		}
	}
	if fe := told(err); fe != nil {
		return fe
	}
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, context.DeadlineExceeded):
		return fleet.Wrap(fleet.CodeDeadlineExceeded, err, "the guest did not finish in time")
	case cause != nil:
		return errors.Join(cause, err)
	}
	return nil
}

func notRunning(text, reason string, err error) error {
	return fleet.Wrap(fleet.CodeConflict, errors.Join(fleet.ErrVMNotRunning, err), fleet.ErrVMNotRunning.Error()+": "+text).
		With(fleet.DetailReason, reason)
}

// told is err with the words that it has for callers; nil if it has none. Of
// errors that are joined the first counts, such as what failed before its
// undoing did; the others stay its causes, for the log.
func told(err error) error {
	first := err
	for {
		joined, ok := first.(interface{ Unwrap() []error })
		if !ok || len(joined.Unwrap()) == 0 {
			break
		}
		first = joined.Unwrap()[0]
	}
	var fe *fleet.Error
	if !errors.As(first, &fe) {
		return nil
	}
	if err == error(fe) { //nolint:errorlint // nothing is around it
		return fe
	}
	out := fleet.Wrap(fe.Code, err, fe.Message)
	for k, v := range fe.Details {
		out = out.With(k, v)
	}
	return out
}
