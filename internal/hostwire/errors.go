package hostwire

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

// sentinels are the well-known errors that keep their identity on the wire.
var sentinels = map[string]error{
	"vm_not_found":           fleet.ErrVMNotFound,
	"vm_not_running":         fleet.ErrVMNotRunning,
	"no_capacity":            fleet.ErrNoCapacity,
	"exec_unsupported":       fleet.ErrExecUnsupported,
	"gpu_unsupported":        fleet.ErrGPUUnsupported,
	"guest_unavailable":      fleet.ErrGuestUnavailable,
	"startup_script_timeout": fleet.ErrStartupScriptTimeout,
	"snapshot_not_found":     fleet.ErrSnapshotNotFound,
	"snapshot_in_use":        fleet.ErrSnapshotInUse,
	"snapshot_state":         fleet.ErrSnapshotInvalidState,
	"snapshot_not_seedable":  fleet.ErrSnapshotNotSeedable,
	"snapshot_incompatible":  fleet.ErrSnapshotIncompatible,
	"snapshot_corrupt":       fleet.ErrSnapshotCorrupt,
	"snapshot_unsupported":   fleet.ErrSnapshotUnsupported,
	"stale_term":             fleet.ErrStaleTerm,
	"unclaimed":              ErrUnclaimed,
	"need_proof":             ErrNeedProof,
	"unsure":                 ErrUnsure,
	"fenced":                 fleet.ErrFenced,
	"unsupported":            ErrUnsupported,
}

// ErrUnclaimed says that the host holds no claim of the caller's term; it has
// to claim first. The refused call had no effect.
var ErrUnclaimed = errors.New("term not claimed at the host")

// ErrUnsure says that the host itself does not know yet what came of a call: it
// may have had its effect.
var ErrUnsure = errors.New("whether it was done is not known yet")

// ErrNeedProof says that a claim has to show that its store held the term that
// the host has seen last, which the detail DetailMarkTerm names.
var ErrNeedProof = errors.New("the claim needs a proof")

// DetailMarkTerm is the term of the mark that a claim was refused for.
const DetailMarkTerm = "mark_term"

// Reasons of a refused claim, as the detail fleet.DetailReason gives them.
const (
	ReasonNeedProof  = "need_proof"  // no refusal yet: the proof is asked for
	ReasonOtherStore = "other_store" // another fingerprint: a copy, or a store that was moved
	ReasonOlderStore = "older_store" // it lacks what this host has seen of the fleet
	ReasonOtherKind  = "other_kind"  // one store is kept in memory only, the other is not
	ReasonMarkMoved  = "mark_moved"  // an accepted claim meant an earlier mark
)

var connectCodes = map[fleet.Code]connect.Code{
	fleet.CodeInvalidArgument:  connect.CodeInvalidArgument,
	fleet.CodeUnauthorized:     connect.CodeUnauthenticated,
	fleet.CodeForbidden:        connect.CodePermissionDenied,
	fleet.CodeNotFound:         connect.CodeNotFound,
	fleet.CodeRouteNotFound:    connect.CodeUnimplemented,
	fleet.CodeMethodNotAllowed: connect.CodeUnimplemented,
	fleet.CodeConflict:         connect.CodeFailedPrecondition,
	fleet.CodePayloadTooLarge:  connect.CodeResourceExhausted,
	fleet.CodeLocked:           connect.CodeFailedPrecondition,
	fleet.CodeQuotaExceeded:    connect.CodeResourceExhausted,
	fleet.CodeUnimplemented:    connect.CodeUnimplemented,
	fleet.CodeUnavailable:      connect.CodeUnavailable,
	fleet.CodeDeadlineExceeded: connect.CodeDeadlineExceeded,
	fleet.CodeInternal:         connect.CodeInternal,
}

// Info renders err as it travels. An error without a code is internal and its
// text stays on the host, whose log has it.
func Info(err error) *hostwirev1.ErrorInfo {
	var fe *fleet.Error
	if !errors.As(err, &fe) {
		return &hostwirev1.ErrorInfo{Code: string(fleet.CodeInternal), Message: "internal error of the host agent"}
	}
	info := &hostwirev1.ErrorInfo{Code: string(fe.Code), Message: fe.Message, Details: fe.Details}
	for name, s := range sentinels {
		if errors.Is(err, s) {
			info.Sentinel = name
		}
	}
	return info
}

// FromInfo makes the error that Info rendered: same code, message and details,
// and the same sentinel for errors.Is.
func FromInfo(info *hostwirev1.ErrorInfo) *fleet.Error {
	e := fleet.Errorf(fleet.Code(info.GetCode()), "%w", &farError{info.GetMessage(), sentinels[info.GetSentinel()]})
	e.Details = maps.Clone(info.GetDetails())
	return e
}

// farError is the far side's message with the sentinel behind it.
type farError struct {
	message  string
	sentinel error
}

func (c *farError) Error() string { return c.message }
func (c *farError) Unwrap() error { return c.sentinel }

// ToConnect renders err for a Connect handler to return.
func ToConnect(err error) error {
	if err == nil {
		return nil
	}
	info := Info(err)
	code, ok := connectCodes[fleet.Code(info.GetCode())]
	if !ok {
		code = connect.CodeInternal
	}
	ce := connect.NewError(code, errors.New(info.GetMessage()))
	detail, derr := connect.NewErrorDetail(info)
	if derr == nil {
		ce.AddDetail(detail)
	}
	return ce
}

// FromConnect turns what a Connect client returned into the host's own error;
// answered is false when there is none, that is, when the call was broken off
// and its effect is unknown.
func FromConnect(err error) (e *fleet.Error, answered bool) {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return transport(err), false
	}
	for _, d := range ce.Details() {
		v, verr := d.Value()
		if info, ok := v.(*hostwirev1.ErrorInfo); verr == nil && ok {
			return FromInfo(info), true
		}
	}
	// A refused token is a refusal, if not one for the caller's callers.
	return transport(err), ce.Code() == connect.CodeUnauthenticated
}

func transport(err error) *fleet.Error {
	var fe *fleet.Error
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &fe):
		return fe
	case errors.As(err, &cert):
		return strangeCert(cert)
	case errors.Is(err, context.DeadlineExceeded), connect.CodeOf(err) == connect.CodeDeadlineExceeded:
		return fleet.Wrap(fleet.CodeDeadlineExceeded, err, "the host did not answer in time")
	case connect.CodeOf(err) == connect.CodeUnauthenticated:
		return fleet.Wrap(fleet.CodeUnavailable, err, "the host refused the token").
			With(fleet.DetailRemedy, "register the host again with its current token")
	case connect.CodeOf(err) == connect.CodeResourceExhausted:
		return fleet.Wrap(fleet.CodePayloadTooLarge, err, "a message to or from the host is too large")
	default:
		return fleet.Wrap(fleet.CodeUnavailable, err, "the host did not answer")
	}
}
