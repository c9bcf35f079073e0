package fleet

import (
	"errors"
	"fmt"
	"maps"
)

// Code is one of the closed set of error codes on the wire. One file in the
// api package maps codes to HTTP statuses.
type Code string

// Error codes: the existing wire's, plus ours (method_not_allowed,
// quota_exceeded, deadline_exceeded).
const (
	CodeInvalidArgument  Code = "invalid_argument"
	CodeUnauthorized     Code = "unauthorized"
	CodeForbidden        Code = "forbidden"
	CodeNotFound         Code = "not_found"
	CodeRouteNotFound    Code = "route_not_found"
	CodeMethodNotAllowed Code = "method_not_allowed"
	CodeConflict         Code = "conflict"
	CodePayloadTooLarge  Code = "payload_too_large"
	CodeLocked           Code = "locked"
	CodeQuotaExceeded    Code = "quota_exceeded"
	CodeUnimplemented    Code = "unimplemented"
	CodeUnavailable      Code = "unavailable"
	CodeDeadlineExceeded Code = "deadline_exceeded"
	CodeInternal         Code = "internal"
)

// Error is an error a caller may see. Message is for people and holds no
// secret and no address; Details carries limit, scope, usage, remedy and the
// like; the wrapped cause is logged, never sent.
type Error struct {
	Code    Code
	Message string
	Details map[string]string
	cause   error
	inText  bool // the message already tells the cause
}

func (e *Error) Error() string {
	if e.cause != nil && !e.inText {
		return e.Message + ": " + e.cause.Error()
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// Errorf makes an Error whose message is the formatted text; a %w operand is
// its cause, so the message shows it to callers. Use Wrap to hide one.
func Errorf(code Code, format string, args ...any) *Error {
	w := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: w.Error(), cause: errors.Unwrap(w), inText: true}
}

// Wrap gives err a code and a message for callers; err itself is only logged.
func Wrap(code Code, err error, message string) *Error {
	return &Error{Code: code, Message: message, cause: err}
}

// Invalid refuses a field of a request. The message begins with the field and
// goes on with format; the details name the field, its limit and the remedy.
func Invalid(field, limit, remedy, format string, args ...any) *Error {
	e := Errorf(CodeInvalidArgument, field+" "+format, args...).With(DetailScope, field)
	for key, value := range map[string]string{DetailLimit: limit, DetailRemedy: remedy} {
		if value != "" {
			e = e.With(key, value)
		}
	}
	return e
}

// With returns a copy of e that carries one more detail.
func (e *Error) With(key, value string) *Error {
	c := *e
	c.Details = maps.Clone(e.Details)
	if c.Details == nil {
		c.Details = map[string]string{}
	}
	c.Details[key] = value
	return &c
}

// CodeOf finds the code of the outermost Error in err's chain; an error that
// carries none is internal, nil has the empty code.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var fe *Error
	if errors.As(err, &fe) {
		return fe.Code
	}
	return CodeInternal
}

// Keys of Error.Details.
const (
	DetailLimit  = "limit"
	DetailScope  = "scope"
	DetailUsage  = "usage"
	DetailRemedy = "remedy"
	DetailReason = "reason"
	DetailStep   = "step"
	DetailHostID = "host_id"
	// DetailRotation is the number of the token's rotation that the host has done.
	DetailRotation = "rotation"
)

// Sentinels of the seed that callers match with errors.Is; they travel inside
// an Error as its cause.
var (
	ErrTaskAlreadyAssigned          = errors.New("task already assigned")
	ErrVMNotFound                   = errors.New("vm not found")
	ErrTaskNotFound                 = errors.New("task not found")
	ErrHostNotFound                 = errors.New("host not found")
	ErrSnapshotNotFound             = errors.New("snapshot not found")
	ErrSnapshotQuotaExceeded        = errors.New("snapshot quota exceeded")
	ErrSnapshotInvalidState         = errors.New("snapshot invalid state")
	ErrSnapshotHasChildren          = errors.New("snapshot has children")
	ErrSnapshotNotSeedable          = errors.New("snapshot not seedable")
	ErrSnapshotUnsupported          = errors.New("snapshot not supported by provider")
	ErrSnapshotInUse                = errors.New("snapshot in use")
	ErrSnapshotIncompatible         = errors.New("snapshot of another kind of machine")
	ErrSnapshotCorrupt              = errors.New("snapshot does not hold what was written")
	ErrPlaygroundNotFound           = errors.New("playground not found")
	ErrKeyNotFound                  = errors.New("api key not found")
	ErrVMNotRunning                 = errors.New("vm not running")
	ErrHostHasVMs                   = errors.New("host still has vms assigned")
	ErrNoHosts                      = errors.New("no hosts registered")
	ErrNoCapacity                   = errors.New("no host has sufficient capacity")
	ErrNoLabelMatch                 = errors.New("no host matches the requested placement labels")
	ErrHostPinUnschedulable         = errors.New("pinned host cannot take this environment")
	ErrQuotaExceeded                = errors.New("quota exceeded")
	ErrInvalidCursor                = errors.New("invalid pagination cursor")
	ErrExecUnsupported              = errors.New("exec not supported by provider")
	ErrAttachUnsupported            = errors.New("attach not supported by provider")
	ErrGPUUnsupported               = errors.New("operation not supported for gpu environments")
	ErrGuestUnavailable             = errors.New("guest surface unavailable")
	ErrStartupScriptTimeout         = errors.New("startup script did not complete in time")
	ErrStartupScriptTimeoutTooLarge = errors.New("startup script timeout exceeds the configured maximum")
	ErrStaleTerm                    = errors.New("stale term")
	ErrNotLeader                    = errors.New("not the leader")
	ErrFenced                       = errors.New("this host does not accept the state store that the server runs on")
	ErrStoreUnavailable             = errors.New("state store unavailable")
)

// ErrBoundHostUnschedulable is ErrHostPinUnschedulable for a host that nobody
// chose: it has the snapshot or the memory that an environment goes on from.
var ErrBoundHostUnschedulable = fmt.Errorf("the host that has what it goes on from cannot take it: %w", ErrHostPinUnschedulable)
