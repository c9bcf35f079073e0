// Package addresses tells under which addresses a playground can be reached: the
// ports that Docker publishes for it, as a look shows them, and the names that a
// proxy on the marquee leads to it. It is pure.
package addresses

import (
	"cmp"
	"net"
	"slices"
	"strconv"

	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// Address is one of a service.
type Address struct {
	Service string
	Inside  string // the port in the container, such as 80/tcp
	Address string // host:port, or the name that a proxy knows
	// Scope is public for one that other machines may reach, host for one that
	// listens on the host itself alone, and the proxy's kind for a name.
	Scope string
}

// Scopes.
const (
	ScopePublic = "public"
	ScopeHost   = "host"
)

// Of lists the addresses of a playground on a marquee that is reached at host.
// Ports are those of containers that run, and only if they were seen.
func Of(look observe.ProjectLook, host string, routes []model.Route) (out []Address) {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	for _, r := range routes {
		out = append(out, Address{Service: r.Service, Inside: strconv.Itoa(r.Port) + "/tcp", Address: r.Host, Scope: r.Proxy})
	}
	containers, _ := look.Containers()
	for _, c := range containers {
		if c.State != "running" || c.OneOff {
			continue
		}
		for _, p := range c.Ports {
			a := Address{Service: c.Service, Inside: p.Inside, Scope: ScopePublic}
			at := p.IP
			switch ip := net.ParseIP(p.IP); {
			case ip == nil || ip.IsUnspecified():
				at = host
			case ip.IsLoopback():
				a.Scope = ScopeHost
			}
			if a.Address = net.JoinHostPort(at, strconv.Itoa(p.Port)); !slices.Contains(out, a) { // both families show the same
				out = append(out, a)
			}
		}
	}
	slices.SortFunc(out, func(a, b Address) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Inside, b.Inside), cmp.Compare(a.Address, b.Address))
	})
	return out
}
