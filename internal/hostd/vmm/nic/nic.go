// Package nic is the network of one VM: what QEMU, the guest and the host
// agent each need of it.
package nic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/network"
	"github.com/fusevm/fuse/internal/hostd/proc"

	"golang.org/x/sys/unix"
)

// NIC is the network of one VM: what QEMU, the guest and this program each
// need of it.
type NIC struct {
	Netdev string   // value of -netdev; with a tap, up to its descriptor
	Tap    *os.File // nil with user networking
	Port   int      // on the loopback, with user networking
	Guest  guestwire.BootNetwork
	Dial   Dialer
}

// Dialer connects to the guest agent.
type Dialer func(ctx context.Context) (net.Conn, error)

var (
	guestLink = net.JoinHostPort(network.GuestAddr.String(), strconv.Itoa(guestwire.LinkPort))
	// userDNS is QEMU's own resolver in user networking.
	userDNS = "10.9.0.3"
)

// Slot is that of a slot and its tap.
func Slot(slot *network.Slot, tap *os.File) NIC {
	dns := make([]string, len(network.DNSAddrs))
	for i, a := range network.DNSAddrs {
		dns[i] = a.String()
	}
	return NIC{
		Netdev: "tap,id=n0,fd=",
		Tap:    tap,
		Guest: guestwire.BootNetwork{
			Address: network.GuestPrefix.String(), Gateway: network.GatewayAddr.String(),
			GatewayMAC: network.TapMAC.String(), MTU: network.MTU, Nameservers: dns,
		},
		Dial: SlotDialer(slot),
	}
}

// SlotDialer connects inside the slot. Closing such a connection resets it: one
// that lingered for a guest which no longer answers would keep the namespace
// alive for minutes after its removal.
func SlotDialer(slot *network.Slot) Dialer {
	return func(ctx context.Context) (net.Conn, error) {
		conn, err := slot.Dial(ctx, "tcp", guestLink)
		if err != nil {
			return nil, err
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			if err := tcp.SetLinger(0); err != nil {
				return nil, errors.Join(err, tcp.Close())
			}
		}
		return conn, nil
	}
}

// UserDialer connects by a port on the loopback.
func UserDialer(port int) Dialer {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	}
}

// Ports of user networking lie below those that a host publishes by default, and
// below those that Linux gives to outgoing connections: one of these would have
// it before QEMU does, every now and then.
const (
	firstUserPort = 10000
	lastUserPort  = 19999
	userTries     = 100
)

// freePort is a port of the loopback that nobody has.
func freePort() (port int, err error) {
	for range userTries {
		port = firstUserPort + rand.IntN(lastUserPort-firstUserPort+1) //nolint:gosec // it is no secret
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}

// User is QEMU's user networking with one forwarded port. Another process
// may take the port before QEMU does; QEMU then says so and the start fails.
func User() (NIC, error) {
	port, err := freePort()
	if err != nil {
		return NIC{}, err
	}
	return NIC{
		Netdev: fmt.Sprintf("user,id=n0,ipv6=off,net=10.9.0.0/24,host=%s,dns=%s,hostfwd=tcp:127.0.0.1:%d-%s",
			network.GatewayAddr, userDNS, port, guestLink),
		Port:  port,
		Guest: guestwire.BootNetwork{Address: network.GuestPrefix.String(), Gateway: network.GatewayAddr.String(), Nameservers: []string{userDNS}},
		Dial:  UserDialer(port),
	}, nil
}

// Pace of connecting to a guest that may still be booting. A packet that the
// guest cannot answer yet is lost, and the kernel repeats it only after a
// second; so a new attempt starts while the earlier ones still wait.
const (
	attempts  = 10 // at a time
	dialRetry = 10 * time.Millisecond
	dialFirst = 120 * time.Millisecond // of the first attempt alone: who is up answers it, and pays for each
	dialKeep  = 400 * time.Millisecond
	dialMax   = 2 * time.Second
)

// Hedged connects by the first of overlapping attempts that succeeds. The
// longer it takes, the longer an attempt may wait, so that a guest on an
// overloaded host is reached too; the number of attempts at a time stays the
// same.
func Hedged(ctx context.Context, dial Dialer) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	defer wg.Wait()
	defer cancel()
	begun := time.Now()
	next := time.NewTimer(0)
	defer next.Stop()
	alone := dialFirst
	var last error
	for {
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), last)
		case <-next.C:
			keep := min(dialKeep+time.Since(begun)/8, dialMax)
			wg.Go(func() {
				actx, acancel := context.WithTimeout(ctx, keep)
				defer acancel()
				conn, err := dial(actx)
				select {
				case results <- result{conn, err}:
				case <-ctx.Done():
					if conn != nil {
						_ = conn.Close()
					}
				}
			})
			next.Reset(max(keep/attempts, alone))
			alone = 0
		case r := <-results:
			if r.err == nil {
				return r.conn, nil
			}
			if last = r.err; !errors.Is(last, context.DeadlineExceeded) && !errors.Is(last, os.ErrDeadlineExceeded) {
				next.Reset(dialRetry) // the guest, or its host side, said no at once
			}
		}
	}
}

// headerLen is how long the headers of packets are that go to and from a guest
// of any virtio-net of this century.
const headerLen = 12

// Mend makes the tap that a process has under a number, zero for none, fit for its
// guest: another QEMU that got the same tap, and did not come to run its guest,
// has set it to its own start.
func Mend(p *proc.Process, number int) error {
	if number == 0 {
		return nil
	}
	tap, err := p.File(number)
	if err != nil {
		return fmt.Errorf("the machine's tap: %w", err)
	}
	err = unix.IoctlSetPointerInt(int(tap.Fd()), unix.TUNSETVNETHDRSZ, headerLen)
	return errors.Join(err, tap.Close())
}
