package hostd

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strconv"
	"strings"
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
			connect.WithInterceptors(errorMapper{}), connect.WithReadMaxBytes(limit), connect.WithRecover(h.core.recovered),
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
	open.Handle("/", h.core.authorized(versioned(guarded)))
	return open
}

func (h *core) recovered(_ context.Context, spec connect.Spec, _ http.Header, p any) error {
	h.log.Error("handler panicked", "procedure", spec.Procedure, "panic", p)
	return hostwire.ToConnect(fleet.Errorf(fleet.CodeInternal, "internal error of the host agent"))
}

// authorized admits holders of the token. Digests are compared, so neither
// content nor length shows in the time it takes.
func (h *core) authorized(next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(h.cfg.Token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		got := sha256.Sum256([]byte(token))
		if subtle.ConstantTimeCompare(got[:], want[:]) != 1 || !ok {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "unauthorized", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// versioned tells the caller the host's version and refuses callers that are
// too far away. It hands streams a way to stop reading.
func versioned(next http.Handler) http.Handler {
	errs := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(hostwire.VersionHeader, strconv.Itoa(hostwire.WireVersion))
		if r.Method != http.MethodGet {
			if err := hostwire.CheckVersion(r.Header.Get(hostwire.VersionHeader)); err != nil {
				if errs.IsSupported(r) {
					_ = errs.Write(w, r, hostwire.ToConnect(err)) // the caller is gone if not
				} else {
					http.Error(w, err.Error(), http.StatusNotImplemented)
				}
				return
			}
		}
		ctx := context.WithValue(r.Context(), controllerKey{}, http.NewResponseController(w))
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

type controllerKey struct{}

// stopReading ends a blocked read of the request's stream.
func stopReading(ctx context.Context) {
	if rc, ok := ctx.Value(controllerKey{}).(*http.ResponseController); ok {
		_ = rc.SetReadDeadline(time.Unix(1, 0)) // unsupported only without HTTP/2, where streams are refused
	}
}

// partingTime is how long a call whose end has come may go on writing.
const partingTime = 3 * time.Second

// limitWriting ends a write that the caller does not take.
func limitWriting(ctx context.Context) {
	if rc, ok := ctx.Value(controllerKey{}).(*http.ResponseController); ok {
		_ = rc.SetWriteDeadline(time.Now().Add(partingTime)) // as above
	}
}

// errorMapper renders every handler's error for the wire.
type errorMapper struct{}

func (errorMapper) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		resp, err := next(ctx, req)
		return resp, mapped(ctx, err)
	}
}

func (errorMapper) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

func (errorMapper) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		return mapped(ctx, next(ctx, conn))
	}
}

// mapped leaves the caller's own end to Connect: it is not the host's answer.
func mapped(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && err == context.Cause(ctx) {
		return connect.NewError(connect.CodeCanceled, err)
	}
	if connect.CodeOf(err) != connect.CodeUnknown {
		return err
	}
	return hostwire.ToConnect(err)
}
