package hostd

import (
	"context"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/rpc"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

type guestService struct{ h *Host }

// Exec wires the stream to the guest.
func (s guestService) Exec(ctx context.Context, stream *rpc.ExecStream) error {
	return rpc.Exec(ctx, stream, func(ctx context.Context, c rpc.Call) (fleet.ExecStatus, error) {
		return s.h.Exec(ctx, ExecCall{
			Fence: fenceOf(c.Start.GetFence()), Ref: refOf(c.Start.GetRef()), Spec: c.Spec, Stdio: c.Stdio, Broken: c.Broken, Admitted: c.Admitted,
		})
	})
}

// WriteFiles writes files into the guest.
func (s guestService) WriteFiles(ctx context.Context, req *connect.Request[hostwirev1.WriteFilesRequest]) (*connect.Response[hostwirev1.WriteFilesResponse], error) {
	m := req.Msg
	if err := s.h.WriteFiles(ctx, fenceOf(m.GetFence()), refOf(m.GetRef()), hostwire.FilesFromWire(m.GetFiles())); err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.WriteFilesResponse{}), nil
}
