package network

import (
	"bufio"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// published are the ports of one guest in these tests.
func published(slot int) []Published {
	return []Published{{Slot: slot, Host: 20001, Guest: 8080}, {Slot: slot, Host: 20001, Guest: 5300, UDP: true}}
}

// answers reports whether a node gets the greeting at every address.
func answers(t *testing.T, from *node, network, want string, addrs ...string) {
	t.Helper()
	for _, a := range addrs {
		if got, err := from.ask(network, a); strings.TrimSpace(got) != want || err != nil {
			t.Errorf("%s %s: %q, %v", network, a, got, err)
		}
	}
}

// silent checks that a node gets nothing at any address.
func silent(t *testing.T, from *node, network string, addrs ...string) {
	t.Helper()
	for _, a := range addrs {
		if got, err := from.knock(network, a); err == nil {
			t.Errorf("%s %s answers %q", network, a, got)
		}
	}
}

func TestPublishedPorts(t *testing.T) {
	w := newWorld(t, 1500)
	s, g := w.guest(3)
	_, other := w.guest(4)
	w.internet.route(hostAddr, "10.192.0.0/12") // as if the pool could be reached from outside
	g.listen("0.0.0.0:8080", "web")
	g.listen("0.0.0.0:8081", "private")
	g.udp("0.0.0.0:5300", "dns")
	if err := w.mgr.Publish(t.Context(), 3, published(0)); err != nil {
		t.Fatal(err)
	}

	answers(t, w.internet, "tcp", "web", hostAddr+":20001")
	answers(t, w.internet, "udp", "dns", hostAddr+":20001")
	answers(t, w.host, "tcp", "web", "127.0.0.1:20001", hostAddr+":20001")
	answers(t, w.host, "udp", "dns", "127.0.0.1:20001", hostAddr+":20001")

	// Nothing else has opened, for anybody.
	inside := s.UplinkAddr().String()
	silent(t, w.internet, "tcp", hostAddr+":20002", inside+":8081", inside+":8080")
	silent(t, w.host, "tcp", "127.0.0.1:20002", inside+":8081")
	silent(t, other, "tcp", hostAddr+":20001", inside+":8080", GatewayAddr.String()+":20001", "127.0.0.1:20001")
	silent(t, g, "tcp", hostAddr+":20001")

	objects := w.objects()
	for _, name := range []string{"tcp 20001", "udp 20001"} {
		if !slices.Contains(objects, Object{Kind: "port", Name: name, Slot: 3}) {
			t.Errorf("the inventory lacks port %s: %v", name, objects)
		}
	}

	// Another manager, as after a restart, knows them from its start on.
	c, err := w.internet.dial("tcp", "", hostAddr+":20001")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lines := bufio.NewReader(c)
	if _, err := lines.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	again, err := New(Config{
		Registry: w.registry, HostNS: w.host.path(), Resolvers: []netip.Addr{netip.MustParseAddr(resolver)}, Published: published(3),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	answers(t, w.internet, "tcp", "web", hostAddr+":20001")
	answers(t, w.host, "udp", "dns", "127.0.0.1:20001")
	if _, err := io.WriteString(c, "still\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := lines.ReadString('\n'); line != "still\n" || err != nil {
		t.Errorf("the open connection: %q, %v", line, err)
	}

	// One goes, the other stays; its connections end.
	if err := again.Publish(t.Context(), 3, published(3)[1:]); err != nil {
		t.Fatal(err)
	}
	silent(t, w.internet, "tcp", hostAddr+":20001")
	answers(t, w.internet, "udp", "dns", hostAddr+":20001")
	_ = c.SetReadDeadline(time.Now().Add(silence))
	if _, err := io.WriteString(c, "more\n"); err == nil {
		if line, err := lines.ReadString('\n'); err == nil {
			t.Errorf("a connection outlived its port: %q", line)
		}
	}

	// A slot that goes takes its ports along.
	if err := again.Remove(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if left := again.published.all(); len(left) != 0 {
		t.Errorf("left of a removed slot: %v", left)
	}
	silent(t, w.internet, "udp", hostAddr+":20001")
}

// The namespace holds by itself: without the host's rules nobody comes in.
func TestUnpublishedPortsStayShut(t *testing.T) {
	w := newWorld(t, 1500)
	s, g := w.guest(3)
	g.listen("0.0.0.0:8081", "private")
	if err := w.mgr.Publish(t.Context(), 3, published(3)); err != nil {
		t.Fatal(err)
	}
	if err := w.mgr.firewall.remove(); err != nil {
		t.Fatal(err)
	}
	silent(t, w.host, "tcp", s.UplinkAddr().String()+":8081")
}

func TestReservedPorts(t *testing.T) {
	w := newWorld(t, 1500)
	held, err := w.mgr.Reserve(false, 20005)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.mgr.Reserve(false, 20005); err == nil {
		t.Error("a port was reserved twice")
	}
	datagrams, err := w.mgr.Reserve(true, 20005)
	if err != nil {
		t.Errorf("the same number of the other protocol: %v", err)
	} else if err := datagrams.Close(); err != nil {
		t.Error(err)
	}
	if err := held.Close(); err != nil {
		t.Error(err)
	}
	w.host.listen("127.0.0.1:20005", "mine")
	if _, err := w.mgr.Reserve(false, 20005); err == nil {
		t.Error("a port that a program of the host listens at was reserved")
	}
}
