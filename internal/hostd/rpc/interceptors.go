// Package rpc is the plumbing of the host agent's hostwire handlers: errors as
// they travel, calls that were meant for another host, and the streams of an
// exec. It knows nothing of VMs.
package rpc

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"path"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
	"github.com/fusevm/fuse/internal/hostwire/hostwirev1/hostwirev1connect"
)

// ErrorMapper renders every handler's error for the wire.
func ErrorMapper(log *slog.Logger) connect.Interceptor { return errorMapper{log} }

type errorMapper struct{ log *slog.Logger }

func (m errorMapper) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		resp, err := next(ctx, req)
		return resp, m.mapped(ctx, req.Spec().Procedure, err)
	}
}

func (errorMapper) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (m errorMapper) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return m.mapped(ctx, conn.Spec().Procedure, next(ctx, conn))
	}
}

// mapped leaves the caller's own end to Connect: it is not the host's answer.
// What an error without a code says stays here.
func (m errorMapper) mapped(ctx context.Context, procedure string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return connect.NewError(connect.CodeCanceled, err)
	}
	ours := errors.As(err, new(*fleet.Error))
	// What Connect made of a call to a guest may be inside of an error of ours,
	// which must not pass for a call to this host that broke off.
	if connect.CodeOf(err) != connect.CodeUnknown && !ours {
		return err
	}
	if !ours {
		m.log.Error("call failed", "procedure", procedure, "error", err)
	}
	return hostwire.ToConnect(err)
}

// SpanName names the part of a trace that a call is; what only looks around
// from outside is none.
func SpanName(r *http.Request) string {
	if r.Method != http.MethodPost {
		return ""
	}
	return "hostd " + path.Base(r.URL.Path)
}

// Recovered answers for a handler that panicked.
func Recovered(log *slog.Logger) func(context.Context, connect.Spec, http.Header, any) error {
	return func(_ context.Context, spec connect.Spec, _ http.Header, p any) error {
		log.Error("handler panicked", "procedure", spec.Procedure, "panic", p)
		return hostwire.ToConnect(fleet.Errorf(fleet.CodeInternal, "internal error of the host agent"))
	}
}

// Meant refuses calls that were sent to another host than the one of the
// identity own.
func Meant(own string) connect.Interceptor { return meant{own} }

type meant struct{ own string }

func (m meant) check(spec connect.Spec, header http.Header) error {
	switch spec.Procedure {
	case hostwirev1connect.HostGetInfoProcedure, hostwirev1connect.VMListVMsProcedure:
		return nil
	}
	return hostwire.CheckIdentity(header.Get(hostwire.IdentityHeader), m.own)
}

func (m meant) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if err := m.check(req.Spec(), req.Header()); err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

func (meant) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (m meant) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if err := m.check(conn.Spec(), conn.RequestHeader()); err != nil {
			return err
		}
		return next(ctx, conn)
	}
}
