package network

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
)

// The default pool: a block of 1024 slots for each registry, so that several
// host agents on one machine rarely meet and never collide.
var (
	defaultPool = netip.MustParsePrefix("10.192.0.0/12")
	blockBits   = 20
)

// addrs are the two ends of a slot's veth.
func (m *Manager) addrs(n int) (host, inside netip.Addr) {
	base := binary.BigEndian.Uint32(m.pool.Addr().AsSlice()) + 4*uint32(n)
	return addr4(base + 1), addr4(base + 2)
}

func addr4(v uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	return netip.AddrFrom4(b)
}

// choosePool is the configured pool, else the block that existing slots of
// this registry are in, else the first free one from a start that derives
// from the registry.
func (m *Manager) choosePool() (netip.Prefix, error) {
	own, foreign, err := m.prefixesInUse()
	if err != nil {
		return netip.Prefix{}, err
	}
	if p := m.cfg.Pool; p.IsValid() {
		if !p.Addr().Is4() || p != p.Masked() || p.Bits() > 30 {
			return netip.Prefix{}, fmt.Errorf("pool %s must be an IPv4 network of at least a /30", p)
		}
		if at, hit := overlap(p, foreign); hit {
			return netip.Prefix{}, fmt.Errorf("pool %s overlaps %s, which this host uses; choose another pool", p, at)
		}
		return p, nil
	}
	for _, p := range own {
		if defaultPool.Contains(p.Addr()) {
			return netip.PrefixFrom(p.Addr(), blockBits).Masked(), nil
		}
	}
	blocks := uint32(1) << (blockBits - defaultPool.Bits())
	var start uint32
	if _, err := fmt.Sscanf(m.tag, "%x", &start); err != nil {
		return netip.Prefix{}, err
	}
	base := binary.BigEndian.Uint32(defaultPool.Addr().AsSlice())
	for i := range blocks {
		block := netip.PrefixFrom(addr4(base+(start+i)%blocks<<(32-blockBits)), blockBits)
		if _, hit := overlap(block, foreign); !hit {
			return block, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("this host uses every block of %s; configure a pool", defaultPool)
}

func overlap(p netip.Prefix, in []netip.Prefix) (netip.Prefix, bool) {
	for _, q := range in {
		if p.Overlaps(q) {
			return q, true
		}
	}
	return netip.Prefix{}, false
}

// prefixesInUse lists the IPv4 networks of the host's addresses and routes,
// those on links of this registry apart. Default routes use nothing up.
func (m *Manager) prefixesInUse() (own, foreign []netip.Prefix, err error) {
	links, err := m.links.LinkList()
	if err != nil {
		return nil, nil, err
	}
	ours := map[int]bool{}
	for _, l := range links {
		ours[l.Attrs().Index] = strings.HasPrefix(l.Attrs().Name, m.linkPrefix())
	}
	add := func(index int, n *net.IPNet) {
		p, ok := prefix(n)
		switch {
		case !ok || p.Bits() == 0:
		case ours[index]:
			own = append(own, p)
		default:
			foreign = append(foreign, p)
		}
	}
	addrs, err := m.links.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, nil, err
	}
	for _, a := range addrs {
		add(a.LinkIndex, a.IPNet)
	}
	routes, err := m.links.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range routes {
		add(r.LinkIndex, r.Dst)
	}
	return own, foreign, nil
}

func prefix(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones).Masked(), ok
}
