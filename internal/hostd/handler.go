package hostd

import (
	"net/http"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/hostd/portrpc"
	"github.com/fusevm/fuse/internal/hostd/portrpc/meterrpc"
	"github.com/fusevm/fuse/internal/hostd/rpc"
	"github.com/fusevm/fuse/internal/hostwire"
	"github.com/fusevm/fuse/internal/hostwire/hostwirev1/hostwirev1connect"
)

// lookLimit bounds the calls that only look, in time.
const lookLimit = 30 * time.Second

// Service is a part of hostwire that another package serves. check is asked
// with the fence of every call that changes something.
type Service func(check func(Fence) error, opts ...connect.HandlerOption) (path string, h http.Handler)

// Handler serves hostwire and /metrics to holders of the token, and first
// contacts and a bare /livez to everyone.
func (h *Host) Handler() http.Handler {
	options := func(limit int) []connect.HandlerOption {
		return []connect.HandlerOption{
			connect.WithInterceptors(rpc.ErrorMapper(h.core.log), rpc.Meant(hostwire.Identity(h.core.ident.RegistryID, h.core.ident.MachineID))),
			connect.WithReadMaxBytes(limit), connect.WithRecover(rpc.Recovered(h.core.log)),
			// Small messages on short ways: compressing costs more than it saves.
			connect.WithCompression("gzip", nil, nil),
		}
	}
	control, files := options(hostwire.MaxControlBytes), options(hostwire.MaxFilesBytes)
	guarded := http.NewServeMux()
	guarded.Handle(hostwirev1connect.NewHostHandler(hostService{h}, control...))
	guarded.Handle(hostwirev1connect.NewVMHandler(vmService{h}, control...))
	guarded.Handle(h.prober.Adopted(hostwirev1connect.NewGuestHandler(guestService{h}, files...)))
	guarded.Handle(h.prober.Adopted(portrpc.Handler(portrpc.Config{Host: h, Address: h.core.cfg.PortAddress}, control...)))
	guarded.Handle(meterrpc.Handler(h, control...))
	guarded.Handle(h.core.snaps.Handler(files...))
	for _, s := range h.core.cfg.Services {
		guarded.Handle(s(h.core.reg.marks.Check, control...))
	}
	guarded.Handle(h.prober.Adopted("POST "+hostwire.ForwardPrefix+"/", http.HandlerFunc(h.forward)))
	guarded.Handle("GET /metrics", h.core.metrics.Handler())

	open := http.NewServeMux()
	open.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
	})
	open.Handle("POST "+hostwire.ContactPath, hostwire.Contact(h.core.cfg.Token))
	open.Handle("/", hostwire.Guard(h.core.cfg.Token, h.core.cfg.Version, h.core.cfg.Tracer.Handler(guarded, rpc.SpanName)))
	return open
}
