package webhooks

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"net"

	"github.com/fusevm/fuse/internal/fleet"
)

// Bounds of a connection to a receiver.
const (
	maxURL          = 2048
	dialTimeout     = 5 * time.Second
	maxHeader       = 64 << 10
	connsPerHost    = perHook
	maxIdle         = 64
	idleConnTimeout = 30 * time.Second
)

// notPublic are the networks outside of which nothing is sent: what is in them
// is this machine, its neighbours, the cloud's metadata or nobody.
var notPublic = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
)

// global is the only part of IPv6 that reaches other networks; the rest is
// loopback, link-local, unique local, multicast or a mapping of IPv4.
var global = netip.MustParsePrefix("2000::/3")

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// public reports whether an address is on the internet.
func public(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if addr.Is6() && !global.Contains(addr) {
		return false
	}
	for _, p := range notPublic {
		if p.Contains(addr) {
			return false
		}
	}
	return addr.IsValid()
}

// errPrivate is the refusal of an address.
func errPrivate(addr string) error {
	return fleet.Errorf(fleet.CodeInvalidArgument, "address %s is not a public one", addr).
		With(fleet.DetailScope, "url").
		With(fleet.DetailRemedy, "use a receiver on the internet, or start the server with --webhook-allow-private")
}

// control is asked right before a connection is made, after names are
// resolved, so that no name can lead where it may not.
func control(_, address string, _ syscall.RawConn) error {
	peer, err := netip.ParseAddrPort(address)
	if err != nil || !public(peer.Addr()) {
		return errPrivate(address)
	}
	return nil
}

// newClient makes the client that messages go out by. It follows no redirect
// and uses no proxy: either would go where the guard cannot see.
func newClient(allowPrivate bool, timeout time.Duration) *http.Client {
	dialer := &net.Dialer{Timeout: dialTimeout}
	if !allowPrivate {
		dialer.Control = control
	}
	return &http.Client{
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSHandshakeTimeout: dialTimeout, ForceAttemptHTTP2: true,
			MaxConnsPerHost: connsPerHost, MaxIdleConns: maxIdle, IdleConnTimeout: idleConnTimeout, MaxResponseHeaderBytes: maxHeader,
		},
	}
}

// checkURL refuses what cannot be a receiver, as far as that can be known
// before a connection is made.
func checkURL(text string, allowPrivate bool) error {
	invalid := func(format string, args ...any) error {
		return fleet.Invalid("url", "https://HOST[:PORT]/PATH", "give the address at which the receiver takes POST requests", format, args...)
	}
	if len(text) > maxURL {
		return invalid("has %d bytes, more than %d", len(text), maxURL)
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Hostname() == "" || u.Opaque != "" {
		return invalid("is not an address")
	}
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return invalid("has scheme %.20q", u.Scheme)
	case u.Scheme == "http" && !allowPrivate:
		return invalid("must begin with https://: messages would be readable on their way")
	case u.User != nil:
		return invalid("must not carry a user name or password")
	case !goodPort(u):
		return invalid("has port %.20q, which is none", u.Port())
	case u.Fragment != "":
		return invalid("must not have a fragment")
	}
	if allowPrivate {
		return nil
	}
	name := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return errPrivate(name)
	}
	if addr, err := netip.ParseAddr(name); err == nil && !public(addr) {
		return errPrivate(name)
	}
	return nil
}

// goodPort reports whether there is no port or one that can be connected to.
func goodPort(u *url.URL) bool {
	if u.Port() == "" {
		return !strings.HasSuffix(u.Host, ":")
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && n > 0
}

// shown is a URL for logs and errors: its path and query may hold a secret.
func shown(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "?"
	}
	return fmt.Sprintf("%s://%s", u.Scheme, u.Host)
}
