package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Slot is a network for one guest. It holds no resources of this process.
type Slot struct {
	m *Manager
	n int
}

// Create makes slot n. What a dead slot of that number left behind is removed
// first; if a process still holds its tap the error is ErrBusy. On error
// nothing is left.
func (m *Manager) Create(ctx context.Context, n int) (*Slot, error) {
	unlock, err := m.enter(ctx, n)
	if err != nil {
		return nil, err
	}
	defer unlock()

	s := &Slot{m: m, n: n}
	if bound(m.nsPath(n)) {
		if err := s.held(); err != nil {
			return nil, err
		}
	}
	err = m.remove(n)
	if err == nil {
		err = m.setPublished(ctx, n, nil) // of a life that is over
	}
	if err == nil {
		err = m.removeLink(n) // its name is needed now, not in a moment
	}
	if err != nil {
		return nil, fmt.Errorf("remove the remains of network slot %d: %w", n, err)
	}
	if err := inFresh(func() error { return m.build(ctx, n) }); err != nil {
		if undo := m.remove(n); undo != nil {
			err = errors.Join(err, undo)
		}
		return nil, fmt.Errorf("create network slot %d: %w", n, err)
	}
	return s, nil
}

// held is ErrBusy if a process holds the tap of the slot.
func (s *Slot) held() error {
	syscall.ForkLock.RLock() // as in makeTap
	defer syscall.ForkLock.RUnlock()
	tap, err := s.Tap()
	if err == nil {
		err = tap.Close()
	}
	if errors.Is(err, ErrBusy) {
		return err
	}
	return nil
}

// build runs on a thread in the new namespace. The guest has no way out
// before the rules are in place: the veth comes last.
func (m *Manager) build(ctx context.Context, n int) error {
	links, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer links.Close()
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"namespace", func() error { return bind(m.nsPath(n)) }},
		{"settings", settings},
		{"rules", func() error { return addGuestRules(nil) }},
		{"tap", func() error { return addTap(links) }},
		{"veth", func() error { return m.addVeth(n) }},
		{"uplink", func() error { return m.addUplink(links, n) }},
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if m.failStep != nil {
			if err := m.failStep(step.name); err != nil {
				return fmt.Errorf("%s: %w", step.name, err)
			}
		}
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// settings makes the namespace a router for IPv4 alone.
func settings() error {
	for _, name := range []string{"net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/default/disable_ipv6"} {
		if err := writeSysctl(name, "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err // a kernel without IPv6 has nothing to turn off
		}
	}
	// Refusals reach the guest however many it asks for, and cost the host
	// nothing of its own budget of ICMP messages.
	if err := writeSysctl("net/ipv4/icmp_ratemask", "0"); err != nil {
		return err
	}
	return writeSysctl("net/ipv4/ip_forward", "1")
}

// openTap opens the tap of the calling thread's namespace, making it if there
// is none. Only one descriptor can hold it.
func openTap() (int, error) {
	fd, err := unix.Open(tunDevice, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", tunDevice, err)
	}
	req, err := unix.NewIfreq(TapName)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EBUSY) {
			return -1, ErrBusy
		}
		return -1, fmt.Errorf("open tap: %w", err)
	}
	return fd, nil
}

// makeTap makes the tap and lets it go: it stays without a holder. No program
// is started meanwhile: until it is, a child has all descriptors of its parent,
// and the next to open the tap would find it in use.
func makeTap() error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, err := openTap()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return fmt.Errorf("make persistent: %w", err)
	}
	return nil
}

func addTap(links *netlink.Handle) error {
	if err := makeTap(); err != nil {
		return err
	}
	link, err := links.LinkByName(TapName)
	if err != nil {
		return err
	}
	if err := links.LinkSetHardwareAddr(link, TapMAC); err != nil {
		return fmt.Errorf("set MAC: %w", err)
	}
	if err := links.LinkSetMTU(link, MTU); err != nil {
		return fmt.Errorf("set MTU: %w", err)
	}
	if err := links.AddrAdd(link, address(GatewayPrefix)); err != nil {
		return fmt.Errorf("add address: %w", err)
	}
	if err := links.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	// Permanent, so that a guest that arrives paused, or whose MAC was never
	// heard here, is reached by the first packet.
	err = links.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT,
		IP: GuestAddr.AsSlice(), HardwareAddr: GuestMAC,
	})
	if err != nil {
		return fmt.Errorf("add neighbour: %w", err)
	}
	return nil
}

// addVeth makes both ends of the veth and brings up the host's.
func (m *Manager) addVeth(n int) error {
	here, err := netns.Get()
	if err != nil {
		return err
	}
	defer here.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = m.linkName(n), MTU
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerMTU, veth.PeerNamespace = uplinkName, MTU, netlink.NsFd(int(here))
	if err := m.links.LinkAdd(veth); err != nil {
		return err
	}
	link, err := m.links.LinkByName(attrs.Name)
	if err != nil {
		return err
	}
	host, _ := m.pool.addrs(n)
	if err := m.links.AddrAdd(link, address(netip.PrefixFrom(host, 30))); err != nil {
		return fmt.Errorf("add address: %w", err)
	}
	// No link-local address: nothing speaks IPv6 here.
	if err := m.links.LinkSetIP6AddrGenMode(link, nl.IN6_ADDR_GEN_MODE_NONE); err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("turn off IPv6: %w", err)
	}
	return m.links.LinkSetUp(link)
}

// addUplink finishes the namespace's end of the veth.
func (m *Manager) addUplink(links *netlink.Handle, n int) error {
	lo, err := links.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := links.LinkSetUp(lo); err != nil {
		return err
	}
	link, err := links.LinkByName(uplinkName)
	if err != nil {
		return err
	}
	host, inside := m.pool.addrs(n)
	if err := links.AddrAdd(link, address(netip.PrefixFrom(inside, 30))); err != nil {
		return fmt.Errorf("add address: %w", err)
	}
	if err := links.LinkSetUp(link); err != nil {
		return err
	}
	err = links.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: host.AsSlice()})
	if err != nil {
		return fmt.Errorf("add default route: %w", err)
	}
	return nil
}

func address(p netip.Prefix) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}}
}

// Remove ends slot n if it is there. Its process must have ended before: the
// descriptor of a tap keeps a namespace alive. The kernel takes the links down
// with the namespace, a moment after Remove has returned.
func (m *Manager) Remove(ctx context.Context, n int) error {
	unlock, err := m.enter(ctx, n)
	if err != nil {
		return err
	}
	defer unlock()
	if err := errors.Join(m.setPublished(ctx, n, nil), m.remove(n)); err != nil {
		return fmt.Errorf("remove network slot %d: %w", n, err)
	}
	return nil
}

func (m *Manager) remove(n int) error {
	there, err := unbind(m.nsPath(n))
	if err != nil || there {
		return err
	}
	// Without a namespace a link is a remnant. Removing it by itself costs
	// more than letting it go with its namespace, hence only now.
	return m.removeLink(n)
}

func (m *Manager) removeLink(n int) error {
	link, err := m.links.LinkByName(m.linkName(n))
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := m.links.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}

// Slot is an existing slot, made by this process or an earlier one. The error
// is ErrNoSlot if it is not there as Create makes it.
func (m *Manager) Slot(n int) (*Slot, error) {
	if err := m.inRange(n); err != nil {
		return nil, err
	}
	if !bound(m.nsPath(n)) {
		return nil, fmt.Errorf("%w: %s", ErrNoSlot, m.nsPath(n))
	}
	if _, err := m.links.LinkByName(m.linkName(n)); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrNoSlot, m.linkName(n), err)
	}
	return &Slot{m: m, n: n}, nil
}

func (m *Manager) inRange(n int) error {
	if n < 0 || n >= m.Slots() {
		return fmt.Errorf("network slot %d is not between 0 and %d; a larger pool has more", n, m.Slots()-1)
	}
	return nil
}

func (m *Manager) enter(ctx context.Context, n int) (unlock func(), err error) {
	if err := m.inRange(n); err != nil {
		return nil, err
	}
	return m.locks.lock(ctx, n)
}

// Number is the slot's.
func (s *Slot) Number() int { return s.n }

// NetNSPath is where the slot's namespace is bound.
func (s *Slot) NetNSPath() string { return s.m.nsPath(s.n) }

// HostAddr is the host's address on the slot's veth.
func (s *Slot) HostAddr() netip.Addr { host, _ := s.m.pool.addrs(s.n); return host }

// UplinkAddr is the address that the guest's packets have on the host.
func (s *Slot) UplinkAddr() netip.Addr { _, inside := s.m.pool.addrs(s.n); return inside }

// Tap opens the guest's tap, for QEMU's -netdev tap,fd=: frames with a virtio
// header, one queue. Only one descriptor can hold it; ErrBusy otherwise. The
// caller closes it, and should do so once a child process has it.
func (s *Slot) Tap() (*os.File, error) {
	var tap *os.File
	err := inPath(s.NetNSPath(), func() error {
		// Never make a tap here: one that Create did not finish has no rules.
		if _, err := net.InterfaceByName(TapName); err != nil {
			return fmt.Errorf("%w: it has no tap", ErrNoSlot)
		}
		fd, err := openTap()
		if err != nil {
			return err
		}
		tap = os.NewFile(uintptr(fd), TapName)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("tap of network slot %d: %w", s.n, err)
	}
	return tap, nil
}

// Dial connects to an address as seen inside the namespace, the guest's as a
// rule. The address must be literal: names mean nothing there.
func (s *Slot) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(addr); err != nil {
		return nil, fmt.Errorf("dial in network slot %d: %w", s.n, err)
	}
	var conn net.Conn
	err := inPath(s.NetNSPath(), func() error {
		var d net.Dialer
		var err error
		conn, err = d.DialContext(ctx, network, addr)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("dial in network slot %d: %w", s.n, err)
	}
	return conn, nil
}
