package guests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/testkit"
)

// Addresses of a World.
const (
	HostAddr   = "198.51.100.2" // the host's, public as far as rules know
	HostAddr6  = "2001:db8:51::2"
	WorldAddr  = "198.51.100.1" // of those beyond it
	WorldAddr6 = "2001:db8:51::1"
	Public     = "203.0.113.10" // beyond it, which guests may reach
	Resolver   = "10.50.0.53"   // the host's name server, beyond it
)

// Elsewhere are addresses beyond the host that guests must not reach.
var Elsewhere = []string{
	"10.50.0.1", "100.64.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.254",
	"192.0.0.1", "192.168.77.1", "198.18.0.1",
}

// Space is a network namespace.
type Space struct {
	t     testing.TB
	ns    netns.NsHandle
	Links *netlink.Handle
}

// World is a host's network and what is beyond it.
//
//	guest - slot - Host 198.51.100.2 - 198.51.100.1 Beyond
type World struct{ Host, Beyond *Space }

// NewWorld makes both namespaces; they go with the test.
func NewWorld(t testing.TB) *World {
	t.Helper()
	w := &World{newSpace(t), newSpace(t)}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsFd(int(w.Beyond.ns))
	if err := w.Host.Links.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	w.Host.address("eth0", HostAddr+"/24", HostAddr6+"/64")
	w.Beyond.address("eth0", WorldAddr+"/24", WorldAddr6+"/64")
	w.Beyond.address("lo", Public+"/32", Resolver+"/32")
	for _, a := range Elsewhere {
		w.Beyond.address("lo", a+"/32")
	}
	for via, dst := range map[string]string{WorldAddr: "0.0.0.0/0", WorldAddr6: "::/0"} {
		to := netlink.NewIPNet(nil)
		to.IP, to.Mask = netip.MustParsePrefix(dst).Addr().AsSlice(), net.CIDRMask(0, len(netip.MustParseAddr(via).AsSlice())*8)
		if err := w.Host.Links.RouteAdd(&netlink.Route{Gw: netip.MustParseAddr(via).AsSlice(), Dst: to}); err != nil {
			t.Fatalf("route %s: %v", dst, err)
		}
	}
	for _, s := range []*Space{w.Host, w.Beyond} {
		testkit.Eventually(t, time.Minute, "the link is up", func() bool {
			l, err := s.Links.LinkByName("eth0")
			return err == nil && l.Attrs().OperState == netlink.OperUp
		})
	}
	return w
}

func newSpace(t testing.TB) *Space {
	t.Helper()
	s := &Space{t: t, ns: netns.None()}
	err := onThread(func() error { return unix.Unshare(unix.CLONE_NEWNET) }, func() (err error) {
		s.ns, err = netns.Get()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.ns.Close() })
	if s.Links, err = netlink.NewHandleAt(s.ns, unix.NETLINK_ROUTE); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Links.Close)
	s.address("lo")
	return s
}

// address gives a link addresses and turns it on.
func (s *Space) address(name string, prefixes ...string) {
	s.t.Helper()
	l, err := s.Links.LinkByName(name)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range prefixes {
		a, err := netlink.ParseAddr(p)
		if err != nil {
			s.t.Fatal(err)
		}
		a.Flags = unix.IFA_F_NODAD
		if err := s.Links.AddrAdd(l, a); err != nil {
			s.t.Fatalf("add %s to %s: %v", p, name, err)
		}
	}
	if err := s.Links.LinkSetUp(l); err != nil {
		s.t.Fatal(err)
	}
}

// Path leads to the namespace within this process.
func (s *Space) Path() string { return fmt.Sprintf("/proc/self/fd/%d", int(s.ns)) }

// In runs fn on a thread inside. What fn starts in goroutines is outside.
func (s *Space) In(fn func() error) error {
	return onThread(func() error { return netns.Set(s.ns) }, fn)
}

// onThread runs fn on a thread that has entered a namespace. A thread that does
// not come back ends with its goroutine.
func onThread(enter, fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			result <- err
			return
		}
		defer home.Close()
		if err = enter(); err == nil {
			err = fn()
		}
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// Start starts a program inside.
func (s *Space) Start(cmd *exec.Cmd) error { return s.In(cmd.Start) }

// Greet has a greeting for whoever comes to a TCP or UDP address inside. What
// arrives by UDP is on the channel, until that is full.
func (s *Space) Greet(network, address, greeting string) <-chan string {
	s.t.Helper()
	got := make(chan string, 64)
	var wg sync.WaitGroup
	var end io.Closer
	family := "4"
	if strings.HasPrefix(address, "[") {
		family = "6"
	}
	err := s.In(func() error {
		if network == "udp" {
			c, err := new(net.ListenConfig).ListenPacket(s.t.Context(), network+family, address)
			if err == nil {
				end = c
				wg.Go(func() { answer(c, greeting, got) })
			}
			return err
		}
		l, err := new(net.ListenConfig).Listen(s.t.Context(), network+family, address)
		if err == nil {
			end = l
			wg.Go(func() { greet(l, greeting) })
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { end.Close(); wg.Wait() })
	return got
}

func answer(c net.PacketConn, greeting string, got chan<- string) {
	buf := make([]byte, 2048)
	for {
		n, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // what an answer brought back
		}
		select {
		case got <- string(buf[:n]):
		default:
		}
		_, _ = c.WriteTo([]byte(greeting), from) // who asks waits for it
	}
}

func greet(l net.Listener, greeting string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, greeting)
		_ = c.Close()
	}
}

// Get gets a page from inside.
func (s *Space) Get(url string) (string, error) {
	dial := func(ctx context.Context, network, address string) (c net.Conn, err error) {
		err = s.In(func() error { c, err = new(net.Dialer).DialContext(ctx, network, address); return err })
		return c, err
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}
