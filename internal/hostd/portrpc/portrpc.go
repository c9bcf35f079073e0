// Package portrpc serves the ports of a host's guests to its control plane.
package portrpc

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostwire"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/hostwire/hostwirev1/hostwirev1connect"
)

const (
	// publishLimit bounds a change of what one VM publishes.
	publishLimit = 30 * time.Second
	// dialLimit bounds the guest's answer to a connection.
	dialLimit = 15 * time.Second
	// maxForwards bounds the connections of one host at a time.
	maxForwards = 1024
	chunk       = 32 << 10
)

// VM is one admitted VM.
type VM struct {
	Instance driver.Instance
	// Context ends with the VM or the call.
	Context context.Context //nolint:containedctx // of one call
	// Alone waits until nothing else changes the VM.
	Alone func(ctx context.Context) (done func(), err error)
	// Explain says why a call broke off.
	Explain func(err error) error
	// Release ends the use.
	Release func()
}

func (vm VM) ports() (driver.Publisher, error) {
	p, ok := vm.Instance.(driver.Publisher)
	if !ok {
		return nil, fleet.Errorf(fleet.CodeUnimplemented, "the VMs of this host have no ports that can be reached")
	}
	return p, nil
}

// Host admits calls.
type Host interface {
	VMPorts(ctx context.Context, fence *hostwirev1.Fence, ref *hostwirev1.Ref) (VM, error)
}

// Config of the service.
type Config struct {
	Host Host
	// Address is that by which users reach published ports; empty: the one by
	// which the control plane reaches the host.
	Address string
}

// Handler serves ports.
func Handler(cfg Config, opts ...connect.HandlerOption) (string, http.Handler) {
	return hostwirev1connect.NewPortsHandler(&service{cfg: cfg, open: make(chan struct{}, maxForwards)}, opts...)
}

type service struct {
	cfg  Config
	open chan struct{}
}

// PublishPorts makes exactly the given ports of a VM reachable. Once begun it
// goes on when the caller leaves.
func (s *service) PublishPorts(ctx context.Context, req *connect.Request[hostwirev1.PublishPortsRequest]) (*connect.Response[hostwirev1.PublishPortsResponse], error) {
	expose := make([]fleet.ExposeSpec, len(req.Msg.GetPorts()))
	for i, p := range req.Msg.GetPorts() {
		expose[i] = fleet.ExposeSpec{Port: int(p.GetGuest()), Protocol: fleet.Protocol(p.GetProtocol()), HostPort: int(p.GetHost())}
	}
	if err := fleet.CheckExpose(expose); err != nil {
		return nil, err
	}
	vm, err := s.cfg.Host.VMPorts(context.WithoutCancel(ctx), req.Msg.GetFence(), req.Msg.GetRef())
	if err != nil {
		return nil, err
	}
	defer vm.Release()
	ports, err := vm.ports()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(vm.Context, publishLimit)
	defer cancel()
	done, err := vm.Alone(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	want := make([]driver.Port, len(expose))
	for i, e := range expose {
		want[i] = driver.Port{Guest: e.Port, Protocol: e.Protocol, Host: e.HostPort}
	}
	got, err := ports.Publish(ctx, want)
	if err != nil {
		return nil, vm.Explain(err)
	}
	res := &hostwirev1.PublishPortsResponse{Address: s.cfg.Address}
	for _, p := range got {
		res.Ports = append(res.Ports, &hostwirev1.PublishedPort{Guest: int64(p.Guest), Protocol: string(p.Protocol), Host: int64(p.Host)})
	}
	return connect.NewResponse(res), nil
}

type stream = connect.BidiStream[hostwirev1.ForwardPortRequest, hostwirev1.ForwardPortResponse]

// ForwardPort joins a call and a connection to the guest. Nothing is buffered
// beyond a piece each way.
func (s *service) ForwardPort(ctx context.Context, call *stream) error {
	defer hostwire.StopReading(ctx)
	first, err := call.Receive()
	if err != nil {
		return fleet.Errorf(fleet.CodeInvalidArgument, "the connection ended before it began")
	}
	open := first.GetOpen()
	if p := open.GetPort(); p < 1 || p > fleet.MaxPort {
		return fleet.Invalid("port", "1 to 65535", "name a port that a program of the guest listens at", "is %d", p)
	}
	vm, err := s.cfg.Host.VMPorts(ctx, open.GetFence(), open.GetRef())
	if err != nil {
		return err
	}
	defer vm.Release()
	ports, err := vm.ports()
	if err != nil {
		return err
	}
	select {
	case s.open <- struct{}{}:
		defer func() { <-s.open }()
	default:
		n := strconv.Itoa(maxForwards)
		return fleet.Errorf(fleet.CodeUnavailable, "%s connections are forwarded by this host already", n).
			With(fleet.DetailScope, "forwarded connections of a host").With(fleet.DetailLimit, n).With(fleet.DetailUsage, n).
			With(fleet.DetailRemedy, "try again when some have ended").With("retry_after", "1")
	}
	dialing, cancel := context.WithTimeout(vm.Context, dialLimit)
	conn, err := ports.Dial(dialing, int(open.GetPort()))
	cancel()
	if err != nil {
		return vm.Explain(refused(err, open.GetPort()))
	}
	if err := call.Send(&hostwirev1.ForwardPortResponse{Kind: &hostwirev1.ForwardPortResponse_Connected{Connected: true}}); err != nil {
		return errors.Join(err, conn.Close())
	}
	return join(vm.Context, call, conn)
}

// refused tells what kept a connection from the guest.
func refused(err error, port int64) error {
	var fe *fleet.Error
	if errors.As(err, &fe) {
		return err
	}
	return fleet.Wrap(fleet.CodeUnavailable, err, "the guest takes no connection at port "+strconv.FormatInt(port, 10)).
		With(fleet.DetailReason, "connection_refused").With(fleet.DetailRemedy, "see whether a program listens there, and not at the guest's 127.0.0.1 alone")
}

// join moves bytes both ways until both directions have ended, or ctx has.
func join(ctx context.Context, call *stream, conn net.Conn) error {
	told := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		hostwire.LimitWriting(ctx)
		_ = conn.Close()
		close(told)
	})
	var receiving sync.WaitGroup
	receiving.Go(func() {
		if err := receive(call, conn); err != nil {
			_ = conn.Close() // the caller has left: so does the guest's end
		}
	})
	err := send(call, conn)
	if err != nil {
		_ = conn.Close()
		hostwire.StopReading(ctx)
	}
	receiving.Wait()
	if !stop() {
		<-told
	}
	_ = conn.Close()
	return context.Cause(ctx)
}

// receive passes on what the caller sends, and the end of it.
func receive(call *stream, conn net.Conn) error {
	for {
		m, err := call.Receive()
		if err != nil {
			return err
		}
		switch {
		case m.GetEof():
			if half, ok := conn.(interface{ CloseWrite() error }); ok {
				return half.CloseWrite()
			}
			return nil
		case len(m.GetData()) > 0:
			if _, err := conn.Write(m.GetData()); err != nil {
				return err
			}
		}
	}
}

// send passes on what the guest sends, and the end of it.
func send(call *stream, conn net.Conn) error {
	buf := make([]byte, chunk)
	for {
		n, err := conn.Read(buf)
		if n > 0 {
			if err := call.Send(&hostwirev1.ForwardPortResponse{Kind: &hostwirev1.ForwardPortResponse_Data{Data: buf[:n]}}); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return call.Send(&hostwirev1.ForwardPortResponse{Kind: &hostwirev1.ForwardPortResponse_Eof{Eof: true}})
		case err != nil:
			return err
		}
	}
}
