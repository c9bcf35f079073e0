package hostd

import (
	"context"
	"net/http"
	"strings"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostwire"
)

// forward passes a call on to a guest as it is, once it is admitted. Nothing is
// buffered here beyond a piece each way, and the call ends with the VM.
func (h *Host) forward(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, hostwire.ForwardPrefix)
	if !guestwire.Forwarded(path) {
		http.NotFound(w, r)
		return
	}
	defer hostwire.StopReading(r.Context())
	l, guest, err := h.reach(r.Header)
	if err != nil {
		hostwire.RefuseForward(w, r, err)
		return
	}
	ctx, release := l.bind(r.Context())
	defer release()
	told := make(chan struct{})
	stop := context.AfterFunc(l.ctx, func() { hostwire.LimitWriting(r.Context()); close(told) })
	defer func() {
		if !stop() { // not after the handler has returned
			<-told
		}
	}()
	on := r.WithContext(ctx)
	target := *r.URL
	target.Path = path
	on.URL = &target
	guest.ServeHTTP(w, on)
}

// reach admits a call that is to be passed on.
func (h *Host) reach(header http.Header) (*life, http.Handler, error) {
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
		return nil, nil, err
	}
	guest, ok := inst.Guest().(http.Handler)
	if !ok {
		return nil, nil, fleet.Errorf(fleet.CodeUnimplemented, "the VMs of this host take no such calls")
	}
	return l, guest, nil
}
