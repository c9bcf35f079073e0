package lifecycle

import (
	"context"
	"errors"
	"fmt"

	"github.com/fusevm/fuse/internal/fleet"
)

// PendingError says that an environment is claimed for destruction, durably,
// and its host has not confirmed the end yet. The loop goes on trying.
type PendingError struct {
	VMID, HostID string
	cause        error
}

func (e *PendingError) Error() string {
	return fmt.Sprintf("environment %s is being destroyed; host %s has not confirmed yet", e.VMID, e.HostID)
}

// Unwrap gives the error its code, unavailable, and its cause.
func (e *PendingError) Unwrap() error {
	return fleet.Wrap(fleet.CodeUnavailable, e.cause, e.Error()).With(fleet.DetailHostID, e.HostID)
}

// redacted is an error whose text has lost its secrets; what it wraps can
// still be matched.
type redacted struct {
	text string
	err  error
}

func (r *redacted) Error() string { return r.text }
func (r *redacted) Unwrap() error { return r.err }

// stepError is the error of a failed step, fit for the caller and the record,
// with the step and the host in its details.
func (b *build) stepError(name string, err error) error {
	out := b.fit(name, err).With(fleet.DetailStep, name)
	if b.hostID != "" {
		out = out.With(fleet.DetailHostID, b.hostID)
	}
	return out
}

// fit gives an error a code and takes the caller's secrets out. One without a
// code is an internal one and keeps its text for the log.
func (b *build) fit(name string, err error) *fleet.Error {
	cause := &redacted{b.redact(err.Error()), err}
	var fe, out *fleet.Error
	switch {
	case !errors.As(err, &fe) && errors.Is(err, context.DeadlineExceeded):
		out = fleet.Wrap(fleet.CodeDeadlineExceeded, cause, "create ran out of time in step "+name)
	case fe == nil:
		out = fleet.Wrap(fleet.CodeInternal, cause, "create failed in step "+name)
	case errors.Is(err, fleet.ErrStaleTerm):
		out = fleet.Wrap(fleet.CodeUnavailable, cause, "this server does not lead the fleet any more")
	case b.redact(fe.Message) == cause.text:
		out = fleet.Errorf(fe.Code, "%w", cause)
	default:
		out = fleet.Wrap(fe.Code, cause, b.redact(fe.Message))
	}
	if fe != nil {
		for k, v := range fe.Details {
			out = out.With(k, b.redact(v))
		}
	}
	return out
}

// message is what of an error may be shown and stored.
func message(err error) string {
	var fe *fleet.Error
	if errors.As(err, &fe) {
		return fe.Message
	}
	return "internal error"
}

// causeOf prefers the reason why ctx ended to the error that this led to.
func causeOf(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
