package remote

import (
	"context"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/provider"
)

var (
	_ provider.Meter   = (*Provider)(nil)
	_ provider.Limiter = (*environment)(nil)
)

// meter is the part of a Provider that reads what VMs take.
type meter struct{ p *Provider }

// Usage implements provider.Meter.
func (m meter) Usage(ctx context.Context, refs []provider.Ref) ([]fleet.Usage, error) {
	p := m.p
	ctx, cancel := context.WithTimeout(ctx, p.cfg.CallTimeout)
	defer cancel()
	req := &hostwirev1.GetUsageRequest{}
	for _, r := range refs {
		req.Refs = append(req.Refs, wireRef(r))
	}
	var out []fleet.Usage
	err := p.change(ctx, func(f *hostwirev1.Fence) error {
		req.Fence = f
		res, err := p.metering.GetUsage(ctx, connect.NewRequest(req))
		if err != nil {
			return meterError(ctx, err)
		}
		for _, u := range res.Msg.GetUsage() {
			out = append(out, hostwire.UsageFromWire(u))
		}
		return nil
	})
	return out, err
}

// SetLimits implements provider.Limiter.
func (e *environment) SetLimits(ctx context.Context, l fleet.ResourceLimits) error {
	ctx, cancel := context.WithTimeout(ctx, e.p.cfg.ChangeTimeout)
	defer cancel()
	return e.p.change(ctx, func(f *hostwirev1.Fence) error {
		_, err := e.p.metering.SetLimits(ctx, connect.NewRequest(&hostwirev1.SetLimitsRequest{Fence: f, Ref: e.call(""), Limits: hostwire.LimitsToWire(l)}))
		return meterError(ctx, err)
	})
}

// meterError is callError; a host that does not know the service says so.
func meterError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if _, answered := hostwire.FromConnect(err); !answered && connect.CodeOf(err) == connect.CodeUnimplemented {
		return fleet.Wrap(fleet.CodeUnimplemented, err, "this host's agent measures and limits no machines that run").With(fleet.DetailRemedy, "update the host agent")
	}
	return callError(ctx, err)
}
