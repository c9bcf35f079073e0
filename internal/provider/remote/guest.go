package remote

import (
	"context"
	"errors"
	"io"
	"net/http"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostwire"
	"github.com/fusevm/fuse/internal/provider"
)

var _ provider.GuestReacher = (*environment)(nil)

// Guest are the calls that the host passes on to the guest.
func (e *environment) Guest() guestwire.Surface {
	return guestwire.NewSurface(forwarded{e}, e.p.base+hostwire.ForwardPrefix, connect.WithInterceptors(explaining{e.p}))
}

// forwarded sends calls that are to be passed on, with what admits them.
type forwarded struct{ e *environment }

// Do implements connect.HTTPClient.
func (f forwarded) Do(r *http.Request) (*http.Response, error) {
	p := f.e.p
	if _, err := p.Claim(r.Context()); err != nil {
		return nil, err
	}
	fence, err := p.cfg.Fencer.Fence()
	if err != nil {
		return nil, err
	}
	if err := hostwire.SetForward(r.Header, wireFence(fence), f.e.call("")); err != nil {
		return nil, err
	}
	res, err := p.streams.Do(r)
	if err != nil {
		return nil, err
	}
	// Once there is an answer the transport does not look at the context while
	// the request waits for flow control.
	body := res.Body
	stop := context.AfterFunc(r.Context(), func() { _ = body.Close() })
	res.Body = &watchedBody{body, stop}
	return res, nil
}

// watchedBody is an answer whose end is no longer awaited once closed.
type watchedBody struct {
	io.ReadCloser
	stop func() bool
}

// Close implements io.Closer.
func (b *watchedBody) Close() error {
	b.stop()
	return b.ReadCloser.Close()
}

// explaining turns the errors of forwarded calls into those of a provider.
type explaining struct{ p *Provider }

func (x explaining) explain(ctx context.Context, err error) error {
	var fe *fleet.Error
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return err
	case hostwire.RefusedByHost(err):
		err = callError(ctx, err)
		if f, ferr := x.p.cfg.Fencer.Fence(); ferr == nil && (errors.Is(err, fleet.ErrStaleTerm) || errors.Is(err, hostwire.ErrUnclaimed)) {
			x.p.forget(f.FleetID)
		}
		return err
	case connect.CodeOf(err) == connect.CodeUnimplemented:
		return fleet.Wrap(fleet.CodeUnimplemented, err, "the host or guest agent does not know this call").
			With(fleet.DetailRemedy, "bring the host agent up to date and create the environment anew")
	case connect.IsWireError(err) && ctx.Err() == nil:
		return guestwire.Failure(ctx, "ask the guest", err)
	case errors.As(err, &fe): // of the fence, say
		return fe
	}
	return callError(ctx, err)
}

// WrapUnary repeats a call once that the host refused because it knows of no
// claim: it had no effect, and the next one claims first.
func (x explaining) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		if err = x.explain(ctx, err); errors.Is(err, hostwire.ErrUnclaimed) {
			res, err = next(ctx, req)
			err = x.explain(ctx, err)
		}
		return res, err
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (x explaining) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		return explainedConn{next(ctx, spec), ctx, x}
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (explaining) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

type explainedConn struct {
	connect.StreamingClientConn
	ctx context.Context //nolint:containedctx // of the call
	x   explaining
}

// Send implements connect.StreamingClientConn.
func (c explainedConn) Send(m any) error { return c.x.explain(c.ctx, c.StreamingClientConn.Send(m)) }

// Receive implements connect.StreamingClientConn.
func (c explainedConn) Receive(m any) error {
	return c.x.explain(c.ctx, c.StreamingClientConn.Receive(m))
}
