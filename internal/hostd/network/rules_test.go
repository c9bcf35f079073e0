package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// refused says whether an error is an answer of the rules, not a silence.
func refused(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EHOSTUNREACH)
}

func TestGuestReachesThePublicInternet(t *testing.T) {
	w := newWorld(t, MTU)
	_, g := w.guest(0)
	w.internet.listen(public+":80", "web")
	w.internet.udp(public+":443", "quic")
	for _, network := range []string{"tcp", "udp"} {
		port, want := ":80", "web\n"
		if network == "udp" {
			port, want = ":443", "quic"
		}
		if got, err := g.ask(network, public+port); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", network, got, err, want)
		}
	}
	if kind := g.ping(public); kind != ipv4.ICMPTypeEchoReply {
		t.Errorf("ping: %v, want an echo reply", kind)
	}
}

// ping sends one echo request and returns the type of the ICMP message that
// answers it.
func (n *node) ping(addr string) icmp.Type {
	n.t.Helper()
	var c *icmp.PacketConn
	n.in(func() (err error) { c, err = icmp.ListenPacket("ip4:icmp", "0.0.0.0"); return err })
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		n.t.Fatal(err)
	}
	request := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: 7, Seq: 1, Data: []byte("ping")}}
	data, err := request.Marshal(nil)
	if err != nil {
		n.t.Fatal(err)
	}
	if _, err := c.WriteTo(data, &net.IPAddr{IP: net.ParseIP(addr)}); err != nil {
		n.t.Fatal(err)
	}
	buf := make([]byte, 1500)
	for {
		size, _, err := c.ReadFrom(buf)
		if err != nil {
			n.t.Fatalf("ping %s: %v", addr, err)
		}
		if m, err := icmp.ParseMessage(1, buf[:size]); err == nil && m.Type != ipv4.ICMPTypeEcho {
			return m.Type
		}
	}
}

func TestGuestIsRefusedEverythingElse(t *testing.T) {
	w := newWorld(t, MTU)
	slot, g := w.guest(0)
	other, og := w.guest(1)
	w.internet.listen("0.0.0.0:80", "private")
	w.internet.udp("0.0.0.0:81", "private")
	w.host.listen("0.0.0.0:80", "host")
	w.host.udp("0.0.0.0:81", "host")
	og.listen("0.0.0.0:80", "other guest")
	og.udp("0.0.0.0:81", "other guest")
	inside := w.inside(slot)
	inside.listen("0.0.0.0:80", "namespace")
	inside.udp("0.0.0.0:81", "namespace")

	type target struct{ what, addr string }
	targets := []target{
		{"the host's public address", hostAddr},
		{"the host's end of its veth", slot.HostAddr().String()},
		{"the host's end of another veth", other.HostAddr().String()},
		{"the namespace's own uplink", slot.UplinkAddr().String()},
		{"another namespace's uplink", other.UplinkAddr().String()},
		{"the gateway", GatewayAddr.String()},
		{"a name server's alias, other port", DNSAddrs[0].String()},
	}
	for _, a := range elsewhere {
		targets = append(targets, target{"elsewhere", a})
		if strings.HasPrefix(a, "240.") {
			continue // Linux itself opens no connection to it; guests may try
		}
		if got, err := w.host.ask("tcp", a+":80"); err != nil || got != "private\n" {
			t.Fatalf("control: the host itself does not reach %s: %q, %v", a, got, err)
		}
	}
	for _, target := range targets {
		t.Run(strings.ReplaceAll(target.what+" "+target.addr, " ", "_"), func(t *testing.T) {
			for network, port := range map[string]string{"tcp": ":80", "udp": ":81"} {
				// TCP hears "refused", as from a closed port: clients know
				// that and try no further.
				got, err := g.ask(network, target.addr+port)
				if !refused(err) || network == "tcp" && !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("%s: %q, %v; want a refusal", network, got, err)
				}
			}
			if kind := g.ping(target.addr); kind != ipv4.ICMPTypeDestinationUnreachable {
				t.Errorf("ping: %v, want unreachable", kind)
			}
		})
	}
}

func TestPublishedPortsOfTheHostAreNotForGuests(t *testing.T) {
	w := newWorld(t, MTU)
	_, g := w.guest(0)
	w.internet.listen("172.16.0.1:80", "container")
	// As Docker publishes a port: to a private address behind the host's own.
	w.host.nft("add table ip pub; add chain ip pub pre { type nat hook prerouting priority -100; };" +
		"add rule ip pub pre ip daddr " + hostAddr + " tcp dport 8080 dnat to 172.16.0.1:80")
	if got, err := g.ask("tcp", hostAddr+":8080"); !refused(err) {
		t.Errorf("%q, %v; want a refusal", got, err)
	}
}

// nft feeds commands to the nft program inside the node: tests only.
func (n *node) nft(script string) string {
	n.t.Helper()
	var out []byte
	n.in(func() (err error) {
		cmd := exec.Command("nft", "-f", "-")
		if script == "" {
			cmd = exec.Command("nft", "-s", "list", "ruleset")
		}
		cmd.Stdin = strings.NewReader(script)
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
	return string(out)
}

func TestNameServers(t *testing.T) {
	w := newWorld(t, MTU)
	_, g := w.guest(0)
	w.internet.listen(resolver+":53", "dns over tcp")
	w.internet.udp(resolver+":53", "dns over udp")
	for _, alias := range DNSAddrs {
		if got, err := g.ask("udp", alias.String()+":53"); err != nil || got != "dns over udp" {
			t.Errorf("udp %s: %q, %v", alias, got, err)
		}
		if got, err := g.ask("tcp", alias.String()+":53"); err != nil || got != "dns over tcp\n" {
			t.Errorf("tcp %s: %q, %v", alias, got, err)
		}
	}
	for _, network := range []string{"tcp", "udp"} {
		if got, err := g.ask(network, resolver+":53"); !refused(err) {
			t.Errorf("%s to the resolver itself: %q, %v; want a refusal", network, got, err)
		}
	}
}

func TestResolverOnTheHostItself(t *testing.T) {
	w := newWorld(t, MTU)
	_, g := w.guest(0)
	w.host.udp(hostAddr+":53", "dnsmasq")
	w.host.listen(hostAddr+":53", "dnsmasq")
	w.host.udp(hostAddr+":54", "something else")
	w.mgr.cfg.Resolvers = []netip.Addr{netip.MustParseAddr(hostAddr)}
	if err := w.mgr.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got, err := g.ask("udp", DNSAddrs[1].String()+":53"); err != nil || got != "dnsmasq" {
		t.Errorf("udp: %q, %v; want dnsmasq", got, err)
	}
	if got, err := g.ask("tcp", DNSAddrs[0].String()+":53"); err != nil || got != "dnsmasq\n" {
		t.Errorf("tcp: %q, %v; want dnsmasq", got, err)
	}
	for _, port := range []string{":53", ":54"} {
		if got, err := g.ask("udp", hostAddr+port); !refused(err) {
			t.Errorf("%s directly: %q, %v; want a refusal", port, got, err)
		}
	}
}

func TestSpoofedSourcesGoNowhere(t *testing.T) {
	w := newWorld(t, MTU)
	slot, g := w.guest(0)
	got := w.internet.udp(public+":9", "ok")
	for _, forged := range []string{"10.9.0.77", "203.0.113.77", slot.UplinkAddr().String()} {
		g.addr("lo", forged+"/32")
		c, err := g.dial("udp", forged, public+":9")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("forged " + forged)); err != nil {
			t.Fatal(err)
		}
	}
	g.wantFirst(got, public+":9")
}

// wantFirst sends an honest datagram after whatever went before on the same
// path, and expects it to be the first that arrives.
func (n *node) wantFirst(got <-chan string, addr string) {
	n.t.Helper()
	if answer, err := n.ask("udp", addr); err != nil {
		n.t.Fatalf("control: %q, %v", answer, err)
	}
	if first := <-got; first != "hello" {
		n.t.Errorf("arrived: %q", first)
	}
}

func TestNoIPv6(t *testing.T) {
	w := newWorld(t, MTU)
	slot, g := w.guest(0)
	inside := w.inside(slot)
	// The guest would need a neighbour and a route to send at all.
	err := g.links.NeighSet(&netlink.Neigh{
		LinkIndex: g.link(TapName).Attrs().Index, Family: netlink.FAMILY_V6, State: netlink.NUD_PERMANENT,
		IP: net.ParseIP("2001:db8:9::1"), HardwareAddr: TapMAC,
	})
	if err != nil {
		t.Fatal(err)
	}
	g.route("2001:db8:9::1", "::/0")
	inside.in(func() error {
		addrs, err := net.InterfaceAddrs()
		for _, a := range addrs {
			if p, perr := netip.ParsePrefix(a.String()); perr == nil && p.Addr().Is6() {
				err = fmt.Errorf("the namespace has an IPv6 address: %s", p)
			}
		}
		return err
	})
	got, gotIPv6 := w.internet.udp(public+":9", "ok"), w.internet.udp("[2001:db8:51::1]:9", "ok")
	if answer, err := w.host.ask("udp", "[2001:db8:51::1]:9"); err != nil || <-gotIPv6 != "hello" {
		t.Fatalf("control: %q, %v", answer, err)
	}
	c, err := g.dial("udp", "", "[2001:db8:51::1]:9")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("over IPv6")); err != nil {
		t.Fatal(err)
	}
	g.wantFirst(got, public+":9")
	select {
	case s := <-gotIPv6:
		t.Errorf("arrived: %q", s)
	default:
	}
	if !strings.Contains(inside.nft(""), "meta nfproto != ipv4 counter drop") {
		t.Error("the namespace has no rule against IPv6")
	}
}

func TestNobodyReachesIn(t *testing.T) {
	w := newWorld(t, MTU)
	slot, g := w.guest(0)
	got := g.udp("0.0.0.0:9", "ok")
	inside := w.inside(slot)
	gotInside := inside.udp(slot.UplinkAddr().String()+":9", "ok")
	w.internet.route(hostAddr, w.mgr.pool.String())
	w.internet.route(hostAddr, GuestPrefix.Masked().String())
	for _, from := range []*node{w.internet, w.host} {
		for _, to := range []string{slot.UplinkAddr().String(), GuestAddr.String()} {
			c, err := from.dial("udp", "", to+":9")
			if err != nil {
				continue // no route is a refusal too
			}
			defer c.Close()
			_, _ = c.Write([]byte("knock"))
		}
	}
	conn, err := slot.Dial(context.Background(), "udp", GuestAddr.String()+":9")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if first := <-got; first != "hello" {
		t.Errorf("the guest got %q", first)
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 9)); err != nil {
		t.Errorf("answer to Dial: %v", err)
	}
	select {
	case s := <-gotInside:
		t.Errorf("the namespace got %q", s)
	default:
	}
}

func TestDialReachesTheGuest(t *testing.T) {
	w := newWorld(t, MTU)
	slot, g := w.guest(0)
	g.listen("10.9.0.2:9550", "fused")
	c, err := slot.Dial(context.Background(), "tcp", "10.9.0.2:9550")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 6)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "fused\n" {
		t.Errorf("%q, %v", buf, err)
	}
	if _, err := slot.Dial(context.Background(), "tcp", "10.9.0.2:1"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("closed port: %v, want refused", err)
	}
	if _, err := slot.Dial(context.Background(), "tcp", "localhost:80"); err == nil {
		t.Error("a name was dialled")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := slot.Dial(ctx, "tcp", "10.9.0.2:9550"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestSmallerUplinkMTU(t *testing.T) {
	const mtu = 1300
	w := newWorld(t, MTU)
	_, g := w.guest(0)
	// Only the host knows: the others would send larger segments.
	if err := w.host.links.LinkSetMTU(w.host.link("eth0"), mtu); err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	w.internet.in(func() (err error) { l, err = net.Listen("tcp", public+":80"); return err })
	defer l.Close()
	c, err := g.dial("tcp", "", public+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for who, conn := range map[string]net.Conn{"guest": c, "server": s} {
		if got := mss(t, conn); got > mtu-40 {
			t.Errorf("%s sends segments of %d bytes through an MTU of %d", who, got, mtu)
		}
	}
	const size = 1 << 20
	if err := errors.Join(c.SetDeadline(time.Now().Add(patience)), s.SetDeadline(time.Now().Add(patience))); err != nil {
		t.Fatal(err)
	}
	for _, way := range [][2]net.Conn{{c, s}, {s, c}} {
		sent := make(chan error, 1)
		go func() { _, err := way[0].Write(make([]byte, size)); sent <- err }()
		n, err := io.CopyN(io.Discard, way[1], size)
		if serr := <-sent; err != nil || serr != nil {
			t.Errorf("%d of %d bytes arrived: %v, %v", n, size, err, serr)
		}
	}
}

func mss(t *testing.T, c net.Conn) int {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var size int
	var sizeErr error
	err = raw.Control(func(fd uintptr) { size, sizeErr = unix.GetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_MAXSEG) })
	if err != nil || sizeErr != nil {
		t.Fatal(err, sizeErr)
	}
	return size
}

func TestConnectionsAreBounded(t *testing.T) {
	w := newWorld(t, MTU)
	slot, g := w.guest(0)
	// Or a busy machine forgets the first ones before it has seen the last.
	w.inside(slot).in(func() error { return writeSysctl("net/netfilter/nf_conntrack_udp_timeout", "3600") })
	w.internet.listen(public+":80", "web")
	if _, err := g.ask("tcp", public+":80"); err != nil {
		t.Fatalf("control: %v", err)
	}
	var c net.PacketConn
	g.in(func() (err error) { c, err = net.ListenPacket("udp4", ":0"); return err })
	defer c.Close()
	// A new destination port is a new connection. The pump drops some.
	port := 1024
	testkit.Eventually(t, 2*patience, "one more connection is refused", func() bool {
		for range 500 {
			port = 1024 + (port-1023)%60000
			_, err := c.WriteTo([]byte("x"), &net.UDPAddr{IP: net.ParseIP(public), Port: port})
			if err != nil && !refused(err) {
				t.Fatal(err)
			}
		}
		_, err := g.ask("tcp", public+":80")
		return refused(err)
	})
}

func TestEveryNamespaceIsTheSame(t *testing.T) {
	w := newWorld(t, MTU)
	type view struct {
		MAC, Addr, Rules, Neighbour string
		MTU                         int
		IPv6Off                     string
	}
	look := func(s *Slot) view {
		n := w.inside(s)
		tap := n.link(TapName)
		v := view{MAC: tap.Attrs().HardwareAddr.String(), MTU: tap.Attrs().MTU, Rules: n.nft("")}
		addrs, err := n.links.AddrList(tap, netlink.FAMILY_V4)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			v.Addr += a.IPNet.String()
		}
		neighbours, err := n.links.NeighList(tap.Attrs().Index, netlink.FAMILY_V4)
		if err != nil {
			t.Fatal(err)
		}
		for _, nb := range neighbours {
			v.Neighbour += fmt.Sprintf("%s %s %d", nb.IP, nb.HardwareAddr, nb.State)
		}
		n.in(func() error {
			data, err := os.ReadFile("/proc/sys/net/ipv6/conf/tap0/disable_ipv6")
			v.IPv6Off = strings.TrimSpace(string(data))
			return err
		})
		return v
	}
	first, second := look(w.slot(0)), look(w.slot(7))
	if diff := cmp.Diff(first, second); diff != "" {
		t.Error(diff)
	}
	want := view{
		MAC: "02:00:00:00:00:01", Addr: "10.9.0.1/24", MTU: 1500, IPv6Off: "1", Rules: first.Rules,
		Neighbour: fmt.Sprintf("10.9.0.2 52:54:00:00:00:01 %d", netlink.NUD_PERMANENT),
	}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Error(diff)
	}
}
