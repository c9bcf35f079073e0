package network

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Published is a port of a guest that the host answers for: who connects to
// Host at any address of the host reaches Guest in the machine of Slot.
type Published struct {
	Slot        int
	UDP         bool // else TCP
	Host, Guest uint16
}

func (p Published) number() byte {
	if p.UDP {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

// loopback is the source of packets that a program of the host sends to
// 127.0.0.1; beyond the host nobody could answer it.
var loopback = netip.MustParsePrefix("127.0.0.0/8")

// Publish makes exactly these ports of a slot reachable and ends connections to
// those that were and no longer are. The Slot of the ports is not read.
func (m *Manager) Publish(ctx context.Context, n int, ports []Published) error {
	unlock, err := m.enter(ctx, n)
	if err != nil {
		return err
	}
	defer unlock()
	if !bound(m.nsPath(n)) {
		return fmt.Errorf("%w: %s", ErrNoSlot, m.nsPath(n))
	}
	ports = slices.Clone(ports)
	for i := range ports {
		ports[i].Slot = n
	}
	if err := inPath(m.nsPath(n), func() error { return addGuestRules(ports) }); err != nil {
		return fmt.Errorf("rules of network slot %d: %w", n, err)
	}
	if err := m.routeLocalnet(n, len(ports) > 0); err != nil {
		return fmt.Errorf("let 127.0.0.1 of the host reach network slot %d: %w", n, err)
	}
	return m.setPublished(ctx, n, ports)
}

// setPublished replaces what the host's table says of a slot.
func (m *Manager) setPublished(ctx context.Context, n int, ports []Published) error {
	before := m.published.set(n, ports)
	if len(before) == 0 && len(ports) == 0 {
		return nil
	}
	if err := m.Sync(ctx); err != nil {
		return err
	}
	return m.cut(slices.DeleteFunc(slices.Clone(before), func(p Published) bool { return slices.Contains(ports, p) }))
}

// publications are published ports by slot.
type publications struct {
	mu     sync.Mutex
	bySlot map[int][]Published
}

// set replaces those of a slot and returns what they were.
func (p *publications) set(n int, ports []Published) (before []Published) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before = p.bySlot[n]
	if len(ports) == 0 {
		delete(p.bySlot, n)
	} else {
		p.bySlot[n] = ports
	}
	return before
}

// all is every one, in an order of its own.
func (p *publications) all() []Published {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Published
	for _, ports := range p.bySlot {
		all = append(all, ports...)
	}
	slices.SortFunc(all, func(a, b Published) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.number(), b.number()))
	})
	return all
}

// cut makes the host forget the connections of ports that are no longer
// published: their packets find no way any more.
func (f firewall) cut(gone []Published) error {
	if len(gone) == 0 {
		return nil
	}
	h, err := netlink.NewHandleAt(f.host, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	filters := make([]netlink.CustomConntrackFilter, 0, len(gone))
	for _, p := range gone {
		_, inside := f.pool.addrs(p.Slot)
		match := &netlink.ConntrackFilter{}
		if err := errors.Join(
			match.AddProtocol(p.number()),
			match.AddPort(netlink.ConntrackOrigDstPort, p.Host),
			match.AddIP(netlink.ConntrackReplySrcIP, inside.AsSlice()),
		); err != nil {
			return err
		}
		filters = append(filters, match)
	}
	if _, err := h.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, filters...); err != nil {
		return fmt.Errorf("end connections of unpublished ports: %w", err)
	}
	return nil
}

// routeLocalnet lets packets from 127.0.0.1 leave by a slot's link, and their
// answers come in. What a guest may send there is not widened: both sets of
// rules refuse it 127.0.0.0/8.
func (f firewall) routeLocalnet(n int, on bool) error {
	return inNamespace(f.host, func() error {
		return writeSysctl(filepath.Join("net/ipv4/conf", f.names.linkName(n), "route_localnet"), map[bool]string{true: "1", false: "0"}[on])
	})
}

// Reserve binds a port of the host, without listening, so that no other program
// can take what is published; an error says that one has it already.
func (m *Manager) Reserve(udp bool, port uint16) (io.Closer, error) {
	kind := unix.SOCK_STREAM
	if udp {
		kind = unix.SOCK_DGRAM
	}
	var f *os.File
	err := inNamespace(m.host, func() error {
		fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: int(port)}); err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		f = os.NewFile(uintptr(fd), "reserved port")
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// publish writes the host's half: what comes for a published port of any of its
// addresses goes to the slot, from elsewhere and from the host itself. Guests
// do not reach each other by it.
func (r *ruleset) publish(ours string, addrs func(slot int) (host, inside netip.Addr), ports []Published) {
	if len(ports) == 0 {
		return
	}
	in := r.chain("publish", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, nftables.ChainTypeNAT, nftables.ChainPolicyAccept)
	own := r.chain("publish-local", nftables.ChainHookOutput, nftables.ChainPriorityNATDest, nftables.ChainTypeNAT, nftables.ChainPolicyAccept)
	for _, p := range ports {
		_, inside := addrs(p.Slot)
		match := rule(isIPv4(), destLocal(), protocol(p.number()), port(p.Host))
		r.add(in, rule(notFromAny(hostPrefix), match, redirectToPort(inside, p.Guest)))
		r.add(own, rule(match, redirectToPort(inside, p.Guest)))
	}
	back := r.chain("publish-source", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, nftables.ChainTypeNAT, nftables.ChainPolicyAccept)
	r.add(back, rule(toAny(ours), sourceIn(loopback), masquerade()))
}

// publishInside writes the namespace's half.
func (r *ruleset) publishInside(ports []Published) {
	if len(ports) == 0 {
		return
	}
	in := r.chain("publish", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, nftables.ChainTypeNAT, nftables.ChainPolicyAccept)
	for _, p := range ports {
		r.add(in, rule(from(uplinkName), isIPv4(), protocol(p.number()), port(p.Guest), redirectTo(GuestAddr)))
	}
	// A caller whose address the guest would look for on its own link.
	back := r.chain("publish-source", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, nftables.ChainTypeNAT, nftables.ChainPolicyAccept)
	r.add(back, rule(to(TapName), sourceIn(GuestPrefix), masquerade()))
}

// destLocal matches packets for an address of the host.
func destLocal() part {
	return part{
		&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
		equal(binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)),
	}
}

func redirectToPort(a netip.Addr, port uint16) part {
	return part{
		&expr.Immediate{Register: 1, Data: a.AsSlice()},
		&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, port)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
	}
}
