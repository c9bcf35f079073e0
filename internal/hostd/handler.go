package hostd

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
	"github.com/fusevm/fuse/internal/hostwire/hostwirev1/hostwirev1connect"
)

// lookLimit bounds the calls that only look, in time.
const lookLimit = 30 * time.Second

// Handler serves hostwire and /metrics to holders of the token, and a bare
// /livez to everyone.
func (h *Host) Handler() http.Handler {
	options := func(limit int) []connect.HandlerOption {
		return []connect.HandlerOption{
			connect.WithInterceptors(errorMapper{h.core.log}, meant{hostwire.Identity(h.core.ident.RegistryID, h.core.ident.MachineID)}),
			connect.WithReadMaxBytes(limit), connect.WithRecover(h.core.recovered),
			// Small messages on short ways: compressing costs more than it saves.
			connect.WithCompression("gzip", nil, nil),
		}
	}
	control, files := options(hostwire.MaxControlBytes), options(hostwire.MaxFilesBytes)
	guarded := http.NewServeMux()
	guarded.Handle(hostwirev1connect.NewHostHandler(hostService{h}, control...))
	guarded.Handle(hostwirev1connect.NewVMHandler(vmService{h}, control...))
	guarded.Handle(hostwirev1connect.NewGuestHandler(guestService{h}, files...))
	guarded.Handle("GET /metrics", h.core.metrics.handler())

	open := http.NewServeMux()
	open.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
	})
	open.Handle("/", hostwire.Guard(h.core.cfg.Token, guarded))
	return open
}

func (h *core) recovered(_ context.Context, spec connect.Spec, _ http.Header, p any) error {
	h.log.Error("handler panicked", "procedure", spec.Procedure, "panic", p)
	return hostwire.ToConnect(fleet.Errorf(fleet.CodeInternal, "internal error of the host agent"))
}

// errorMapper renders every handler's error for the wire.
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
	if connect.CodeOf(err) != connect.CodeUnknown {
		return err
	}
	if !errors.As(err, new(*fleet.Error)) {
		m.log.Error("call failed", "procedure", procedure, "error", err)
	}
	return hostwire.ToConnect(err)
}
