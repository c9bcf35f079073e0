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

// Closing refuses new work.
func Closing() error {
	return fleet.Wrap(fleet.CodeUnavailable, ErrClosing, "the host agent is shutting down").
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
		return fleet.Errorf(fleet.CodeConflict, "the environment was destroyed while it was being created").
			With(fleet.DetailReason, "destroyed")
	case errors.Is(context.Cause(life), ErrClosing):
		return Closing()
	case ctx.Err() != nil:
		return fleet.Wrap(fleet.CodeDeadlineExceeded, err, "the environment did not come up in time")
	}
	var fe *fleet.Error
	if errors.As(err, &fe) {
		return fe
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return journal.DiskFull(err)
	}
	return fleet.Errorf(fleet.CodeInternal, "boot the environment: %w", err)
}

// Remove tells why a removal did not work out.
func Remove(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fleet.Wrap(fleet.CodeDeadlineExceeded, err, "the environment could not be destroyed in time")
	}
	var fe *fleet.Error
	if errors.As(err, &fe) {
		return fe
	}
	return fleet.Errorf(fleet.CodeInternal, "destroy the environment: %w", err)
}

// Guest tells why a call into a guest broke off: the VM's end first. inst may be
// nil.
func Guest(ctx, life context.Context, inst driver.Instance, err error) error {
	if errors.Is(context.Cause(life), ErrDestroyed) {
		return fleet.Errorf(fleet.CodeConflict, "%w: it is being destroyed", fleet.ErrVMNotRunning).
			With(fleet.DetailReason, "destroyed")
	}
	if errors.Is(context.Cause(life), ErrClosing) {
		return Closing()
	}
	if inst != nil {
		select {
		case <-inst.Done():
			return fleet.Errorf(fleet.CodeConflict, "%w: it has stopped (%s)", fleet.ErrVMNotRunning, inst.Exit().Cause).
				With(fleet.DetailReason, inst.Exit().Cause)
		default:
		}
	}
	var fe *fleet.Error
	switch {
	case errors.As(err, &fe):
		return fe
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return fleet.Wrap(fleet.CodeDeadlineExceeded, err, "the guest did not finish in time")
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fleet.Wrap(fleet.CodeUnavailable, errors.Join(fleet.ErrGuestUnavailable, err), "the guest does not answer")
}
