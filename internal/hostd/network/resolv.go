package network

import (
	"bufio"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// resolvConfs are read in turn until one names a usable server. The second is
// where systemd-resolved keeps the servers behind its stub on 127.0.0.53.
var resolvConfs = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// hostResolvers are the resolvers that guests get: the host's, if a guest can
// reach them through the host, else public ones.
func hostResolvers() []netip.Addr {
	for _, path := range resolvConfs {
		if data, err := os.ReadFile(path); err == nil {
			if addrs := parseResolvConf(string(data)); len(addrs) > 0 {
				return addrs
			}
		}
	}
	return slices.Clone(publicResolvers)
}

// parseResolvConf lists the name servers that packets from another interface
// can reach: IPv4 and not loopback, one for each alias.
func parseResolvConf(text string) []netip.Addr {
	var addrs []netip.Addr
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		a, err := netip.ParseAddr(fields[1])
		if err != nil || !a.Is4() || a.IsLoopback() || a.IsUnspecified() || slices.Contains(addrs, a) {
			continue
		}
		if addrs = append(addrs, a); len(addrs) == len(DNSAddrs) {
			break
		}
	}
	return addrs
}
