package hostd

import (
	"context"
	"net/http"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/hostwire"
	"github.com/fusevm/fuse/internal/hostwire/hostwirev1/hostwirev1connect"
)

// meant refuses calls that were sent to another host than this one.
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
