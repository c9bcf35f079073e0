package hostd

import (
	"context"

	"github.com/fusevm/fuse/internal/hostd/portrpc"
	"github.com/fusevm/fuse/internal/hostd/refusal"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
)

// VMPorts admits a call to the ports of a running VM.
func (h *guests) VMPorts(ctx context.Context, f *hostwirev1.Fence, r *hostwirev1.Ref) (portrpc.VM, error) {
	ref := refOf(r)
	l, inst, err := h.guest(fenceOf(f), ref)
	if err != nil {
		return portrpc.VM{}, err
	}
	ctx, release := l.bind(ctx)
	return portrpc.VM{
		Instance: inst, Context: ctx, Release: release,
		Alone:   func(ctx context.Context) (func(), error) { return h.locks.Take(ctx, ref.UID) },
		Explain: func(err error) error { return refusal.Guest(ctx, l.ctx, inst, err) },
	}, nil
}
