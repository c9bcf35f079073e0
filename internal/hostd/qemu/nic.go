package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/network"
)

// nic is the network of one VM: what QEMU, the guest and this program each
// need of it.
type nic struct {
	netdev string   // value of -netdev; with a tap, up to its descriptor
	tap    *os.File // nil with user networking
	port   int      // on the loopback, with user networking
	guest  guestwire.BootNetwork
	dial   dialer
}

type dialer func(ctx context.Context) (net.Conn, error)

var (
	guestLink = net.JoinHostPort(network.GuestAddr.String(), strconv.Itoa(guestwire.LinkPort))
	// userDNS is QEMU's own resolver in user networking.
	userDNS = "10.9.0.3"
)

// makeNIC gives the VM its network; it has the same address either way.
func (d *Driver) makeNIC(ctx context.Context, vm driver.VM) (nic, error) {
	if d.slots == nil {
		return userNIC()
	}
	slot, err := d.slots.Create(ctx, vm.Slot)
	if err != nil {
		return nic{}, err
	}
	tap, err := slot.Tap()
	if err != nil {
		return nic{}, err
	}
	return slotNIC(slot, tap), nil
}

// slotNIC is that of a slot and its tap.
func slotNIC(slot *network.Slot, tap *os.File) nic {
	dns := make([]string, len(network.DNSAddrs))
	for i, a := range network.DNSAddrs {
		dns[i] = a.String()
	}
	return nic{
		netdev: "tap,id=n0,fd=",
		tap:    tap,
		guest: guestwire.BootNetwork{
			Address: network.GuestPrefix.String(), Gateway: network.GatewayAddr.String(),
			GatewayMAC: network.TapMAC.String(), MTU: network.MTU, Nameservers: dns,
		},
		dial: slotDialer(slot),
	}
}

// slotNIC takes a tap of the VM's own slot.
func (b *boot) slotNIC(tap *os.File) error {
	slot, err := b.d.slots.Slot(b.vm.Slot)
	if err != nil {
		return errors.Join(err, tap.Close())
	}
	b.nic = slotNIC(slot, tap)
	return nil
}

// reuseNIC is makeNetwork for a VM that had its slot before; a reboot of the
// host has taken it.
func (b *boot) reuseNIC(ctx context.Context) error {
	if b.d.slots == nil || !b.d.slots.Has(b.vm.Slot) {
		err := b.makeNetwork(ctx)
		b.d.slots.Republish(ctx, b.vm)
		return err
	}
	slot, err := b.d.slots.Slot(b.vm.Slot)
	if err != nil {
		return err
	}
	tap, err := slot.Tap()
	if err != nil {
		return err
	}
	b.nic = slotNIC(slot, tap)
	return nil
}

// slotDialer connects inside the slot. Closing such a connection resets it: one
// that lingered for a guest which no longer answers would keep the namespace
// alive for minutes after its removal.
func slotDialer(slot *network.Slot) dialer {
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

func userDialer(port int) dialer {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	return func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	}
}

// userNIC is QEMU's user networking with one forwarded port. Another process
// may take the port before QEMU does; QEMU then says so and the start fails.
func userNIC() (nic, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nic{}, fmt.Errorf("find a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return nic{}, err
	}
	return nic{
		netdev: fmt.Sprintf("user,id=n0,ipv6=off,net=10.9.0.0/24,host=%s,dns=%s,hostfwd=tcp:127.0.0.1:%d-%s",
			network.GatewayAddr, userDNS, port, guestLink),
		port:  port,
		guest: guestwire.BootNetwork{Address: network.GuestPrefix.String(), Gateway: network.GatewayAddr.String(), Nameservers: []string{userDNS}},
		dial:  userDialer(port),
	}, nil
}

// findDialer reaches the guest of a VM that an earlier process started.
func (d *Driver) findDialer(vm driver.VM, rec guestRecord) (dialer, error) {
	if rec.Port != 0 {
		return userDialer(rec.Port), nil
	}
	if d.slots == nil {
		return nil, fmt.Errorf("the VM has a network slot, which this process cannot use: %w", d.noSlots)
	}
	slot, err := d.slots.Slot(vm.Slot)
	if err != nil {
		return nil, err
	}
	return slotDialer(slot), nil
}

// Pace of connecting to a guest that may still be booting. A packet that the
// guest cannot answer yet is lost, and the kernel repeats it only after a
// second; so a new attempt starts while the earlier ones still wait.
const (
	attempts  = 10 // at a time
	dialRetry = 10 * time.Millisecond
	dialKeep  = 400 * time.Millisecond
	dialMax   = 2 * time.Second
)

// hedged connects by the first of overlapping attempts that succeeds. The
// longer it takes, the longer an attempt may wait, so that a guest on an
// overloaded host is reached too; the number of attempts at a time stays the
// same.
func hedged(ctx context.Context, dial dialer) (net.Conn, error) {
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
			next.Reset(keep / attempts)
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
