package hostd

import (
	"context"
	"net/http"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/rpc"
	"github.com/fusevm/fuse/internal/hostwire"
)

// forward passes a call on to a guest as it is.
func (h *Host) forward(w http.ResponseWriter, r *http.Request) { rpc.Forward(w, r, h.reach) }

// reach admits a call that is to be passed on.
func (h *Host) reach(header http.Header) (context.Context, http.Handler, error) {
	own := hostwire.Identity(h.core.ident.RegistryID, h.core.ident.MachineID)
	if err := hostwire.CheckIdentity(header.Get(hostwire.IdentityHeader), own); err != nil {
		return nil, nil, err
	}
	fence, ref, err := hostwire.ForwardOf(header)
	if err != nil {
		return nil, nil, err
	}
	l, inst, err := h.guest(fenceOf(fence), refOf(ref))
	if err != nil {
		return context.Background(), h.core.consoles.Left(fence.GetFleetId(), ref.GetVmId(), ref.GetUid(), err), nil
	}
	guest, ok := inst.Guest().(http.Handler)
	if !ok {
		return nil, nil, fleet.Errorf(fleet.CodeUnimplemented, "the VMs of this host take no such calls")
	}
	return l.ctx, guest, nil
}
