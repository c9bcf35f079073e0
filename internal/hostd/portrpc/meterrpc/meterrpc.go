// Package meterrpc serves what a host's VMs take, and changes what they may.
package meterrpc

import (
	"context"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/portrpc"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/hostwire/hostwirev1/hostwirev1connect"
)

const (
	// setLimit bounds a change of limits, lookLimit the reading of one VM.
	setLimit  = 30 * time.Second
	lookLimit = 2 * time.Second
	atOnce    = 16
	maxRefs   = 4096
)

// Handler serves metering; host admits each VM.
func Handler(host portrpc.Host, opts ...connect.HandlerOption) (string, http.Handler) {
	return hostwirev1connect.NewMeteringHandler(service{host}, opts...)
}

type service struct{ host portrpc.Host }

// GetUsage leaves out what cannot be read: the next look is soon.
func (s service) GetUsage(ctx context.Context, req *connect.Request[hostwirev1.GetUsageRequest]) (*connect.Response[hostwirev1.GetUsageResponse], error) {
	refs := req.Msg.GetRefs()
	if len(refs) > maxRefs {
		return nil, fleet.Errorf(fleet.CodeInvalidArgument, "the usage of %d VMs is asked for at once", len(refs)).With(fleet.DetailLimit, "4096")
	}
	var mu sync.Mutex
	res := &hostwirev1.GetUsageResponse{}
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, ref := range refs {
		g.Go(func() error {
			u, ok := s.usage(ctx, req.Msg.GetFence(), ref)
			if ok {
				mu.Lock()
				defer mu.Unlock()
				res.Usage = append(res.Usage, hostwire.UsageToWire(u))
			}
			return nil
		})
	}
	_ = g.Wait() // none fails
	return connect.NewResponse(res), ctx.Err()
}

func (s service) usage(ctx context.Context, fence *hostwirev1.Fence, ref *hostwirev1.Ref) (fleet.Usage, bool) {
	vm, err := s.host.VMPorts(ctx, fence, ref)
	if err != nil {
		return fleet.Usage{}, false
	}
	defer vm.Release()
	m, ok := vm.Instance.(driver.Meter)
	if !ok {
		return fleet.Usage{}, false
	}
	ctx, cancel := context.WithTimeout(vm.Context, lookLimit)
	defer cancel()
	u, err := m.Usage(ctx)
	return u, err == nil
}

// SetLimits goes on when the caller leaves: half of the limits are none.
func (s service) SetLimits(ctx context.Context, req *connect.Request[hostwirev1.SetLimitsRequest]) (*connect.Response[hostwirev1.SetLimitsResponse], error) {
	l := hostwire.LimitsFromWire(req.Msg.GetLimits())
	if err := l.Check(); err != nil {
		return nil, err
	}
	vm, err := s.host.VMPorts(context.WithoutCancel(ctx), req.Msg.GetFence(), req.Msg.GetRef())
	if err != nil {
		return nil, err
	}
	defer vm.Release()
	lim, ok := vm.Instance.(driver.Limiter)
	if !ok {
		return nil, fleet.Errorf(fleet.CodeUnimplemented, "the VMs of this host cannot be limited while they run")
	}
	ctx, cancel := context.WithTimeout(vm.Context, setLimit)
	defer cancel()
	done, err := vm.Alone(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := lim.SetLimits(ctx, l); err != nil {
		return nil, vm.Explain(err)
	}
	return connect.NewResponse(&hostwirev1.SetLimitsResponse{}), nil
}
