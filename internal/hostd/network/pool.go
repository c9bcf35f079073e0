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

// pool is the network that the /30s of the veths come from.
type pool struct{ netip.Prefix }

// slots is how many slots a pool has.
func (p pool) slots() int {
	if bits := 30 - p.Bits(); bits < 14 {
		return min(1<<bits, maxSlots)
	}
	return maxSlots
}

// addrs are the two ends of a slot's veth.
func (p pool) addrs(n int) (host, inside netip.Addr) {
	base := binary.BigEndian.Uint32(p.Addr().AsSlice()) + 4*uint32(n)
	return addr4(base + 1), addr4(base + 2)
}

func addr4(v uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	return netip.AddrFrom4(b)
}

// choosePool is the configured pool, else the block that existing slots of
// this registry are in, else the first free one from a start that derives
// from the registry. claim is asked for each of these, until it says yes.
func choosePool(links *netlink.Handle, names names, configured netip.Prefix, claim func(netip.Prefix) (bool, error)) (pool, error) {
	own, foreign, err := prefixesInUse(links, names.linkPrefix())
	if err != nil {
		return pool{}, err
	}
	if p := configured; p.IsValid() {
		if !p.Addr().Is4() || p != p.Masked() || p.Bits() > 30 {
			return pool{}, fmt.Errorf("pool %s must be an IPv4 network of at least a /30", p)
		}
		if at, hit := overlap(p, foreign); hit {
			return pool{}, fmt.Errorf("pool %s overlaps %s, which this host uses; choose another pool", p, at)
		}
		return pool{p}, nil
	}
	for _, p := range own {
		if defaultPool.Contains(p.Addr()) {
			block := netip.PrefixFrom(p.Addr(), blockBits).Masked()
			_, err := claim(block) // its addresses show that it is used
			return pool{block}, err
		}
	}
	blocks := uint32(1) << (blockBits - defaultPool.Bits())
	var start uint32
	if _, err := fmt.Sscanf(names.tag, "%x", &start); err != nil {
		return pool{}, err
	}
	base := binary.BigEndian.Uint32(defaultPool.Addr().AsSlice())
	for i := range blocks {
		block := netip.PrefixFrom(addr4(base+(start+i)%blocks<<(32-blockBits)), blockBits)
		if _, hit := overlap(block, foreign); hit {
			continue
		}
		if ok, err := claim(block); ok || err != nil {
			return pool{block}, err
		}
	}
	return pool{}, fmt.Errorf("this host uses every block of %s; configure a pool", defaultPool)
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
// those on links that begin with ours apart. Default routes use nothing up.
func prefixesInUse(h *netlink.Handle, ours string) (own, foreign []netip.Prefix, err error) {
	links, err := dumped(h.LinkList)
	if err != nil {
		return nil, nil, err
	}
	isOurs := map[int]bool{}
	for _, l := range links {
		isOurs[l.Attrs().Index] = strings.HasPrefix(l.Attrs().Name, ours)
	}
	add := func(index int, n *net.IPNet) {
		p, ok := prefix(n)
		switch {
		case !ok || p.Bits() == 0:
		case isOurs[index]:
			own = append(own, p)
		default:
			foreign = append(foreign, p)
		}
	}
	addrs, err := dumped(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, nil, err
	}
	for _, a := range addrs {
		add(a.LinkIndex, a.IPNet)
	}
	routes, err := dumped(func() ([]netlink.Route, error) { return h.RouteList(nil, netlink.FAMILY_V4) })
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
