package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/hostwire"
)

// reachTime bounds the way to one address.
const reachTime = 5 * time.Second

// Reach is the check that an address which is told to people works from here,
// where one of them is. what names it: "server of context prod".
func Reach(what, address string, client *http.Client) Check {
	return Check{what, func(ctx context.Context) Finding { return reach(ctx, address, client) }}
}

func reach(ctx context.Context, address string, client *http.Client) Finding {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return fail("give it as http://HOST:PORT or https://HOST:PORT", "%q is not the URL of a server", address)
	}
	ctx, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return fail("put the name into DNS, or advertise an address", "%s: the name %s is not known here: %v", address, u.Hostname(), err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath("livez").String(), http.NoBody)
	if err != nil {
		return fail("", "%s: %v", address, err)
	}
	begin := time.Now()
	resp, err := client.Do(req)
	if err != nil {
		remedy := "start the server, or open the port in the firewalls on the way"
		if errors.Is(err, context.DeadlineExceeded) {
			remedy = "a firewall on the way drops packets to this port: open it"
		}
		return fail(remedy, "%s (%s): %v", address, addrs[0], cause(err))
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)); err != nil {
		return fail("", "%s: %v", address, err)
	}
	if resp.StatusCode != http.StatusOK {
		return fail("another program listens there, or a proxy on the way answers", "%s answers with %s", address, resp.Status)
	}
	return ok("%s answers in %d ms", address, time.Since(begin).Milliseconds())
}

// cause is what went wrong without the URL, which the finding names already.
func cause(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// Advertised is the check of an address that a server tells to others. One that
// means "this machine" to whoever reads it is of no use to them, unless the
// server is reached by such an address anyway, as base is.
func Advertised(address, base string, client *http.Client) Check {
	return Check{"advertised address", func(ctx context.Context) Finding {
		at, err := url.Parse(address)
		from, ferr := url.Parse(base)
		if err == nil && ferr == nil && loopback(at.Hostname()) && !loopback(from.Hostname()) {
			return fail("start the server with --advertise URL, an address by which others reach it",
				"%s is told to others, who find themselves there; it is reached as %s", address, base)
		}
		return reach(ctx, address, client)
	}}
}

// Published is the check that a published TCP port of a host is reached from
// here, where one of its users is.
func Published(host, address string) Check {
	return Check{"published ports of host " + host, func(ctx context.Context) Finding {
		ctx, cancel := context.WithTimeout(ctx, reachTime)
		defer cancel()
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		switch {
		case err == nil:
			_ = conn.Close() // it has shown what it was for
			return ok("%s is reached", address)
		case errors.Is(err, unix.ECONNREFUSED):
			return warn("let the program in the environment listen at 0.0.0.0; if it does, start the host agent with --port-address, the host's address for users",
				"%s is refused: no program listens there, or it is another machine", address)
		}
		return fail("open the ports of --port-range in the firewalls on the way, or start the host agent with --port-address, the host's address for users",
			"%s: %v", address, err)
	}}
}

// loopback reports whether a host means this machine to whoever dials it.
func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return hostwire.IsLoopback(host) || err == nil && ip.IsUnspecified()
}

// Hosts is the check of what a server says of its hosts; each problem is a line.
func Hosts(problems []string, total int) Finding {
	if len(problems) == 0 {
		return ok("%d hosts, all reachable from the server", total)
	}
	return fail("fuse host get ID says why; start 'fuse hostd' there, or open its port for the server", "%d of %d hosts are not reachable from the server: %s", len(problems), total, fmt.Sprint(problems))
}
