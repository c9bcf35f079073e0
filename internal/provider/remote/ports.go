package remote

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strconv"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/provider"
)

var _ provider.Publisher = (*environment)(nil)

// Publish implements provider.Publisher.
func (e *environment) Publish(ctx context.Context, expose []fleet.ExposeSpec) ([]fleet.Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, e.p.cfg.ChangeTimeout)
	defer cancel()
	req := &hostwirev1.PublishPortsRequest{Ref: e.call("")}
	for _, x := range expose {
		req.Ports = append(req.Ports, &hostwirev1.PublishedPort{Guest: int64(x.Port), Protocol: string(x.Protocol), Host: int64(x.HostPort)})
	}
	var out []fleet.Endpoint
	err := e.p.change(ctx, func(f *hostwirev1.Fence) error {
		req.Fence = f
		res, err := e.p.ports.PublishPorts(ctx, connect.NewRequest(req))
		if err != nil {
			return portError(ctx, err)
		}
		out, err = endpoints(e.p.cfg.URL, expose, res.Msg)
		return err
	})
	return out, err
}

// endpoints are the ports of the host at base as users reach them.
func endpoints(base string, expose []fleet.ExposeSpec, res *hostwirev1.PublishPortsResponse) ([]fleet.Endpoint, error) {
	if len(res.GetPorts()) != len(expose) {
		return nil, fleet.Errorf(fleet.CodeInternal, "the host answered for %d ports instead of %d", len(res.GetPorts()), len(expose))
	}
	address := res.GetAddress()
	if address == "" {
		address = publicName(base)
	}
	out := make([]fleet.Endpoint, len(expose))
	for i, x := range expose {
		host := strconv.FormatInt(res.GetPorts()[i].GetHost(), 10)
		out[i] = fleet.Endpoint{As: x.As, URL: net.JoinHostPort(address, host), Port: x.Port, Protocol: x.Protocol}
	}
	return out, nil
}

// publicName is where users reach a host that the control plane reaches at base:
// one on the same machine for a socket.
func publicName(base string) string {
	if u, err := url.Parse(base); err == nil && u.Hostname() != "" && u.Scheme != "unix" {
		return u.Hostname()
	}
	return "127.0.0.1"
}

// portError is callError; a host that does not know the service says so.
func portError(ctx context.Context, err error) error {
	if _, answered := hostwire.FromConnect(err); !answered && connect.CodeOf(err) == connect.CodeUnimplemented {
		return fleet.Wrap(fleet.CodeUnimplemented, err, "this host's agent publishes no ports").With(fleet.DetailRemedy, "update the host agent")
	}
	return callError(ctx, err)
}

// Dial implements provider.Publisher.
func (e *environment) Dial(ctx context.Context, port int) (provider.PortConn, error) {
	var conn *portConn
	err := e.p.change(ctx, func(f *hostwirev1.Fence) error {
		ctx, cancel := context.WithCancel(ctx)
		c := &portConn{call: e.p.forwards.ForwardPort(ctx), ctx: ctx, cancel: cancel}
		// The transport notices the end of ctx only once the request has ended.
		context.AfterFunc(ctx, func() { _ = c.call.CloseRequest() })
		err := c.call.Send(&hostwirev1.ForwardPortRequest{Kind: &hostwirev1.ForwardPortRequest_Open{
			Open: &hostwirev1.OpenPort{Fence: f, Ref: e.call(""), Port: int64(port)},
		}})
		if err == nil || errors.Is(err, io.EOF) { // of which Receive tells the cause
			var m *hostwirev1.ForwardPortResponse
			if m, err = c.call.Receive(); err == nil && !m.GetConnected() {
				err = errors.New("the host did not say that the guest has taken the connection")
			}
		}
		if err != nil {
			_ = c.Close()
			return portError(ctx, err)
		}
		conn = c
		return nil
	})
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// portConn is a forwarded connection.
type portConn struct {
	call   *connect.BidiStreamForClient[hostwirev1.ForwardPortRequest, hostwirev1.ForwardPortResponse]
	ctx    context.Context //nolint:containedctx // of the call
	cancel context.CancelFunc
	rest   []byte // of the last message; touched by Read alone
}

// maxPiece bounds the data of one message.
const maxPiece = 64 << 10

func (c *portConn) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		m, err := c.call.Receive()
		if err != nil {
			return 0, callError(c.ctx, err)
		}
		if m.GetEof() {
			return 0, io.EOF
		}
		c.rest = m.GetData()
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func (c *portConn) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		piece := p[:min(len(p), maxPiece)]
		if err := c.call.Send(&hostwirev1.ForwardPortRequest{Kind: &hostwirev1.ForwardPortRequest_Data{Data: piece}}); err != nil {
			return n, err
		}
		n, p = n+len(piece), p[len(piece):]
	}
	return n, nil
}

// CloseWrite ends our direction. The call stays until the guest ends its own.
func (c *portConn) CloseWrite() error {
	if err := c.call.Send(&hostwirev1.ForwardPortRequest{Kind: &hostwirev1.ForwardPortRequest_Eof{Eof: true}}); err != nil {
		return err
	}
	return c.call.CloseRequest()
}

// Close ends the call, whatever is still under way.
func (c *portConn) Close() error {
	c.cancel()
	_ = c.call.CloseRequest() // they fail only where the call has ended already
	_ = c.call.CloseResponse()
	return nil
}
