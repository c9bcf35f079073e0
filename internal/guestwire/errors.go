package guestwire

import (
	"context"
	"errors"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fusevm/fuse/internal/fleet"
)

// guestCodes are how the guest's refusals travel.
var guestCodes = map[fleet.Code]connect.Code{
	fleet.CodeInvalidArgument:  connect.CodeInvalidArgument,
	fleet.CodeNotFound:         connect.CodeNotFound,
	fleet.CodeForbidden:        connect.CodePermissionDenied,
	fleet.CodeConflict:         connect.CodeFailedPrecondition,
	fleet.CodePayloadTooLarge:  connect.CodeOutOfRange,
	fleet.CodeUnavailable:      connect.CodeResourceExhausted,
	fleet.CodeUnimplemented:    connect.CodeUnimplemented,
	fleet.CodeDeadlineExceeded: connect.CodeDeadlineExceeded,
}

// Refuse renders an error of the guest's for its handlers to return, details
// included.
func Refuse(err error) error {
	if err == nil || errors.As(err, new(*connect.Error)) {
		return err
	}
	var fe *fleet.Error
	if !errors.As(err, &fe) {
		if errors.Is(err, context.Canceled) {
			return connect.NewError(connect.CodeCanceled, err)
		}
		return connect.NewError(connect.CodeInternal, err)
	}
	code, ok := guestCodes[fe.Code]
	if !ok {
		code = connect.CodeInternal
	}
	refused := connect.NewError(code, errors.New(fe.Error()))
	details := make(map[string]any, len(fe.Details))
	for k, v := range fe.Details {
		details[k] = v
	}
	if s, serr := structpb.NewStruct(details); serr == nil && len(details) > 0 {
		if d, derr := connect.NewErrorDetail(s); derr == nil {
			refused.AddDetail(d)
		}
	}
	return refused
}

// detailsOf are the details that Refuse added. Who owns the guest can make it
// say anything, so they are few and short.
func detailsOf(err *connect.Error) map[string]string {
	const most = 8
	out := map[string]string{}
	for _, d := range err.Details() {
		v, verr := d.Value()
		s, ok := v.(*structpb.Struct)
		if verr != nil || !ok {
			continue
		}
		for k, value := range s.GetFields() {
			if len(out) < most {
				out[refusal(k)] = refusal(value.GetStringValue())
			}
		}
	}
	return out
}

// Failure gives an error of a guest call its code for callers. What the guest
// refused keeps its message; what did not arrive is unavailable.
func Failure(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	return clientError(ctx, op, err)
}
