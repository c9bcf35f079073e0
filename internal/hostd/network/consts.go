package network

import (
	"net"
	"net/netip"
)

// What every guest sees, on every host, for ever: snapshots carry it.
const (
	// TapName is the guest's tap inside its namespace.
	TapName = "tap0"
	// MTU is the guest's. A host whose uplink has a smaller one clamps TCP.
	MTU = 1500
)

// The guest's side of its network; see also TapMAC for the other end.
var (
	GuestAddr   = netip.AddrFrom4([4]byte{10, 9, 0, 2})
	GuestPrefix = netip.PrefixFrom(GuestAddr, 24)
	GuestMAC    = net.HardwareAddr{0x52, 0x54, 0x00, 0x00, 0x00, 0x01}

	GatewayAddr   = netip.AddrFrom4([4]byte{10, 9, 0, 1})
	GatewayPrefix = netip.PrefixFrom(GatewayAddr, 24)
	// TapMAC is the gateway's, a permanent neighbour of the guest.
	TapMAC = net.HardwareAddr{0x02, 0x00, 0x00, 0x00, 0x00, 0x01}

	// DNSAddrs are the guest's name servers: aliases behind the gateway that
	// the host maps to resolvers of its own. They answer on port 53 only.
	DNSAddrs = []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 1, 53}), netip.AddrFrom4([4]byte{10, 9, 1, 54})}
)

const (
	uplinkName = "up0"  // the namespace's end of the veth
	guestTable = "fuse" // in each namespace
	hostPrefix = "fuse" // of every host-side interface, of any registry
	nsDir      = "/run/netns"
	tunDevice  = "/dev/net/tun"
	dnsPort    = 53

	// maxSlots is what the four digits of an interface name hold.
	maxSlots = 10000
	// maxConns bounds the connections that one guest may have open, so that
	// it cannot fill the host's connection table.
	maxConns = 4096
)

// denied is what a guest may not reach: private and shared ranges, loopback,
// link-local with the metadata services, benchmarking, multicast and reserved.
// Sorted, without overlap.
var denied = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),
	netip.MustParsePrefix("10.0.0.0/8"),
	netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.168.0.0/16"),
	netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("224.0.0.0/3"),
}

// publicResolvers stand in on a host that has no resolver of its own that a
// guest could use.
var publicResolvers = []netip.Addr{netip.AddrFrom4([4]byte{1, 1, 1, 1}), netip.AddrFrom4([4]byte{9, 9, 9, 9})}
