package boot

import (
	"context"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/fusevm/fuse/internal/guestwire"
)

// InterfaceName is the guest's one interface; without udev the kernel's own
// name stays.
const InterfaceName = "eth0"

// setUpNetwork brings loopback up and, where there is an address, eth0.
func (m *Machine) setUpNetwork(ctx context.Context) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	if m.Config.Net.Address == "" {
		return nil
	}
	var link netlink.Link
	if err := poll(ctx, InterfaceName, func() bool {
		link, err = netlink.LinkByName(InterfaceName)
		return err == nil
	}); err != nil {
		return err
	}
	return configure(link, m.Config.Net)
}

// configure gives link its address, neighbour and route. The order matters:
// the neighbour needs the link up, the route the address.
func configure(link netlink.Link, cfg guestwire.BootNetwork) error {
	if cfg.MTU != 0 {
		if err := netlink.LinkSetMTU(link, cfg.MTU); err != nil {
			return fmt.Errorf("set mtu %d: %w", cfg.MTU, err)
		}
	}
	addr, err := netlink.ParseAddr(cfg.Address)
	if err != nil {
		return fmt.Errorf("address %s: %w", cfg.Address, err)
	}
	if err := netlink.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("set address %s: %w", cfg.Address, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", link.Attrs().Name, err)
	}
	if cfg.Gateway == "" {
		return nil
	}
	gateway := net.ParseIP(cfg.Gateway)
	if cfg.GatewayMAC != "" {
		mac, err := net.ParseMAC(cfg.GatewayMAC)
		if err != nil {
			return fmt.Errorf("gateway mac: %w", err)
		}
		neigh := &netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: gateway, HardwareAddr: mac}
		if err := netlink.NeighSet(neigh); err != nil {
			return fmt.Errorf("set neighbour %s: %w", cfg.Gateway, err)
		}
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway, Flags: int(netlink.FLAG_ONLINK)}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("set default route by %s: %w", cfg.Gateway, err)
	}
	return nil
}
