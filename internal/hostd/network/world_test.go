package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// node is a network namespace that plays one machine.
type node struct {
	t     testing.TB
	ns    netns.NsHandle
	links *netlink.Handle
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{t: t}
	err := inFresh(func() (err error) {
		n.ns, err = netns.Get()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.ns.Close() })
	if n.links, err = netlink.NewHandleAt(n.ns, unix.NETLINK_ROUTE); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.links.Close)
	n.up("lo")
	return n
}

// path leads to the namespace for as long as the node lives.
func (n *node) path() string { return fmt.Sprintf("/proc/self/fd/%d", int(n.ns)) }

// in runs fn on a thread inside the node.
func (n *node) in(fn func() error) {
	n.t.Helper()
	if err := inNamespace(n.ns, fn); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) link(name string) netlink.Link {
	n.t.Helper()
	link, err := n.links.LinkByName(name)
	if err != nil {
		n.t.Fatal(err)
	}
	return link
}

func (n *node) up(name string) {
	n.t.Helper()
	if err := n.links.LinkSetUp(n.link(name)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) addr(name string, prefixes ...string) {
	n.t.Helper()
	for _, p := range prefixes {
		a := address(netip.MustParsePrefix(p))
		a.Flags = unix.IFA_F_NODAD
		if err := n.links.AddrAdd(n.link(name), a); err != nil {
			n.t.Fatalf("add %s to %s: %v", p, name, err)
		}
	}
}

func (n *node) route(via string, dst string) {
	n.t.Helper()
	p := netip.MustParsePrefix(dst)
	err := n.links.RouteAdd(&netlink.Route{Gw: netip.MustParseAddr(via).AsSlice(), Dst: address(p).IPNet})
	if err != nil {
		n.t.Fatalf("route %s via %s: %v", dst, via, err)
	}
}

// wire joins two nodes.
func wire(a *node, aName string, b *node, bName string, mtu int) {
	a.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = aName, mtu
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerMTU, veth.PeerNamespace = bName, uint32(mtu), netlink.NsFd(int(b.ns))
	if err := a.links.LinkAdd(veth); err != nil {
		a.t.Fatal(err)
	}
	a.up(aName)
	b.up(bName)
	a.settled(aName)
	b.settled(bName)
}

// settled waits until the kernel lets frames out of a link, which is a moment
// after the link has a carrier.
func (n *node) settled(name string) {
	n.t.Helper()
	testkit.Eventually(n.t, patience, name+" is up", func() bool {
		state := n.link(name).Attrs().OperState
		return state == netlink.OperUp || state == netlink.OperUnknown // unknown: never was down
	})
}

// listen opens a TCP listener that greets whoever comes, then echoes.
func (n *node) listen(addr, greeting string) {
	n.t.Helper()
	var l net.Listener
	n.in(func() (err error) { l, err = net.Listen("tcp", addr); return err })
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				if _, err := io.WriteString(c, greeting+"\n"); err == nil {
					_, _ = io.Copy(c, c)
				}
			})
		}
	})
	n.t.Cleanup(func() { l.Close(); wg.Wait() })
}

// udp opens a socket whose datagrams answer with the greeting; what came and
// from where is on the channel.
func (n *node) udp(addr, greeting string) <-chan string {
	n.t.Helper()
	var c net.PacketConn
	n.in(func() (err error) { c, err = net.ListenPacket("udp", addr); return err })
	got := make(chan string, 64)
	var wg sync.WaitGroup
	wg.Go(func() {
		buf := make([]byte, 2048)
		for {
			size, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			select {
			case got <- string(buf[:size]):
			default:
			}
			_, _ = c.WriteTo([]byte(greeting), from)
		}
	})
	n.t.Cleanup(func() { c.Close(); wg.Wait() })
	return got
}

// patience is for what answers at once where the machine is not busy; silence is
// how long nothing must come.
const patience, silence = time.Minute, 2 * time.Second

// dial connects from inside the node.
func (n *node) dial(network, local, addr string) (net.Conn, error) {
	return n.dialWithin(patience, network, local, addr)
}

func (n *node) dialWithin(within time.Duration, network, local, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	d := net.Dialer{}
	if local != "" {
		a := netip.MustParseAddr(local)
		switch network {
		case "tcp":
			d.LocalAddr = &net.TCPAddr{IP: a.AsSlice()}
		case "udp":
			d.LocalAddr = &net.UDPAddr{IP: a.AsSlice()}
		}
	}
	var c net.Conn
	err := inNamespace(n.ns, func() (err error) { c, err = d.DialContext(ctx, network, addr); return err })
	return c, err
}

// ask dials, says hello over UDP, and returns the greeting it gets, or the
// refusal.
func (n *node) ask(network, addr string) (string, error) {
	return n.askWithin(patience, network, addr)
}

// knock asks where nothing is to answer.
func (n *node) knock(network, addr string) (string, error) {
	return n.askWithin(silence, network, addr)
}

func (n *node) askWithin(within time.Duration, network, addr string) (string, error) {
	c, err := n.dialWithin(within, network, "", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return "", err
	}
	if network == "udp" {
		if _, err := c.Write([]byte("hello")); err != nil {
			return "", err
		}
	}
	buf := make([]byte, 64)
	size, err := c.Read(buf)
	return string(buf[:size]), err
}

// The world of a test: guests on a host, the host on an "internet" that also
// has every private address, so that a refusal is a rule and no missing route.
//
//	guest - slot - host 198.51.100.2 - 198.51.100.1 internet
type world struct {
	t        testing.TB
	host     *node
	internet *node
	mgr      *Manager
	registry string
}

const (
	hostAddr = "198.51.100.2" // public, as far as the rules know
	public   = "203.0.113.10"
	resolver = "10.50.0.53"
)

// elsewhere are addresses on the internet node that guests must not reach.
var elsewhere = []string{
	"10.50.0.1", "100.64.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.254",
	"192.0.0.1", "192.168.77.1", "198.18.0.1", "240.0.0.1",
}

func newWorld(t testing.TB, mtu int) *world {
	t.Helper()
	w := &world{t: t, host: newNode(t), internet: newNode(t), registry: t.Name() + fmt.Sprint(os.Getpid())}
	wire(w.host, "eth0", w.internet, "eth0", mtu)
	w.host.addr("eth0", hostAddr+"/24", "2001:db8:51::2/64")
	w.internet.addr("eth0", "198.51.100.1/24", "2001:db8:51::1/64")
	w.internet.addr("lo", public+"/32", resolver+"/32")
	for _, a := range elsewhere {
		w.internet.addr("lo", a+"/32")
	}
	w.host.route("198.51.100.1", "0.0.0.0/0")
	w.host.route("2001:db8:51::1", "::/0")
	w.mgr = w.manager()
	t.Cleanup(func() {
		if err := w.mgr.Uninstall(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return w
}

// manager starts one more manager of the same registry, as a restart does.
func (w *world) manager() *Manager {
	w.t.Helper()
	m, err := New(Config{Registry: w.registry, HostNS: w.host.path(), Resolvers: []netip.Addr{netip.MustParseAddr(resolver)}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := m.Close(); err != nil {
			w.t.Error(err)
		}
	})
	return m
}

func (w *world) slot(n int) *Slot {
	w.t.Helper()
	s, err := w.mgr.Create(context.Background(), n)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// guest makes slot n and puts a machine on its tap: a node with a tap of its
// own, and a pump that carries frames between the two taps.
func (w *world) guest(n int) (*Slot, *node) {
	w.t.Helper()
	s, g := w.slot(n), newNode(w.t)
	far, err := s.Tap()
	if err != nil {
		w.t.Fatal(err)
	}
	var near *os.File
	g.in(func() error {
		fd, err := openTap()
		if err != nil {
			return err
		}
		near = os.NewFile(uintptr(fd), "guest tap")
		return nil
	})
	if err := g.links.LinkSetHardwareAddr(g.link(TapName), GuestMAC); err != nil {
		w.t.Fatal(err)
	}
	g.addr(TapName, GuestPrefix.String(), "2001:db8:9::2/64")
	g.up(TapName)
	g.route(GatewayAddr.String(), "0.0.0.0/0")
	err = g.links.NeighSet(&netlink.Neigh{
		LinkIndex: g.link(TapName).Attrs().Index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT,
		IP: GatewayAddr.AsSlice(), HardwareAddr: TapMAC,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	g.settled(TapName)
	inside := w.inside(s)
	inside.settled(TapName)
	inside.settled(uplinkName)
	w.host.settled(w.mgr.linkName(n))
	var wg sync.WaitGroup
	carry := func(dst, src *os.File) {
		wg.Go(func() {
			buf := make([]byte, 70000)
			for {
				size, err := src.Read(buf)
				if err != nil {
					return
				}
				if _, err := dst.Write(buf[:size]); err != nil && errors.Is(err, os.ErrClosed) {
					return
				}
			}
		})
	}
	carry(near, far)
	carry(far, near)
	w.t.Cleanup(func() { near.Close(); far.Close(); wg.Wait() })
	return s, g
}

// inside is the namespace of a slot as a node.
func (w *world) inside(s *Slot) *node {
	w.t.Helper()
	n := &node{t: w.t}
	var err error
	if n.ns, err = netns.GetFromPath(s.NetNSPath()); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { n.ns.Close() })
	if n.links, err = netlink.NewHandleAt(n.ns, unix.NETLINK_ROUTE); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(n.links.Close)
	return n
}

// objects is the inventory of this registry once links whose namespace is gone
// have followed it.
func (w *world) objects() []Object {
	w.t.Helper()
	var objects []Object
	testkit.Eventually(w.t, patience, "links follow their namespaces", func() bool {
		var err error
		if objects, err = w.mgr.List(); err != nil {
			w.t.Fatal(err)
		}
		for _, o := range objects {
			if o.Kind != "veth" {
				continue
			}
			if _, err := os.Lstat(filepath.Join(nsDir, w.mgr.nsName(o.Slot))); err != nil {
				return false
			}
		}
		return true
	})
	return objects
}
