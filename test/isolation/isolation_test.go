// Package isolation shows with real machines that guests are kept from each
// other, from their host and from what is around it, and what is left of a
// guest's share beside one that takes all it can.
package isolation

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/image/imagetest"
	"github.com/fusevm/fuse/internal/hostd/network"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/guests"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// target is one way to one address; see the probe.
type target struct{ Way, Addr string }

// ways are TCP, UDP and ICMP to an IPv4 address.
func ways(addr string) []target {
	return []target{{"tcp", addr + ":80"}, {"udp", addr + ":81"}, {"icmp", addr}}
}

// verdicts runs the probe by what starts it and returns how each target ended.
func verdicts(t *testing.T, targets []target, probe func(input []byte) (string, error)) map[target]string {
	t.Helper()
	input, err := json.Marshal(targets)
	if err != nil {
		t.Fatal(err)
	}
	text, err := probe(input)
	var list []string
	if err == nil {
		err = json.Unmarshal([]byte(text), &list)
	}
	if err != nil || len(list) != len(targets) {
		t.Fatalf("the probe says %q, %v", text, err)
	}
	out := map[target]string{}
	for i, s := range list {
		out[targets[i]] = s
	}
	return out
}

// veths are the addresses of both ends of each slot's link, as the host has them.
func veths(t *testing.T, w *guests.World) (hostEnds, slotEnds []string) {
	t.Helper()
	links, err := w.Host.Links.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) { // something came or went meanwhile
		links, err = w.Host.Links.LinkList()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if !strings.HasPrefix(l.Attrs().Name, "fuse") {
			continue
		}
		addrs, err := w.Host.Links.AddrList(l, netlink.FAMILY_V4)
		if err != nil || len(addrs) != 1 {
			t.Fatalf("%s has %v, %v", l.Attrs().Name, addrs, err)
		}
		ip := addrs[0].IP.To4()
		hostEnds = append(hostEnds, ip.String())
		slotEnds = append(slotEnds, net.IPv4(ip[0], ip[1], ip[2], ip[3]+1).String())
	}
	return hostEnds, slotEnds
}

// TestGuestsReachNobody tries from one real guest all that it must not reach.
// That the probe works is shown in the same run: it reaches the public internet
// by each way, and from the host's own place it reaches what refuses the guest.
func TestGuestsReachNobody(t *testing.T) {
	w := guests.NewWorld(t)
	program := guests.Build(t, "./probe")
	v6 := greetEverywhere(w)
	overIPv6 := []target{{"tcp", "[" + guests.WorldAddr6 + "]:80"}, {"udp", "[" + guests.WorldAddr6 + "]:81"}, {"icmp6", guests.WorldAddr6}}
	var private []target
	for _, addr := range guests.Elsewhere {
		private = append(private, ways(addr)...)
	}

	// From the host's own place everything answers that is not there for guests.
	there := slices.Concat(private, ways(guests.HostAddr), ways(guests.Public), overIPv6)
	for at, got := range verdicts(t, there, func(input []byte) (string, error) { return inside(w.Host, program, input) }) {
		if !strings.HasPrefix(got, "answer ") {
			t.Fatalf("control: from the host %v is %q", at, got)
		}
	}
	if len(v6) != 1 {
		t.Fatalf("control: %d datagrams arrived over IPv6", len(v6))
	}
	<-v6

	h := guests.In(t, w, imagetest.Store(t))
	from, other := h.Boot("minimal", nil), h.Boot("minimal", nil)
	code, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	from.Put("/root/probe", code)
	other.Put("/root/probe", code)
	other.Background("/root/probe", "-serve")
	published := fmt.Sprint(":", other.Publish(80)[0])
	testkit.Eventually(t, guests.Within, "the other guest's published port is reached from beyond the host", func() bool {
		at := target{"tcp", guests.HostAddr + published}
		return verdicts(t, []target{at}, func(input []byte) (string, error) { return inside(w.Beyond, program, input) })[at] == "answer hello"
	})

	hostEnds, slotEnds := veths(t, w)
	if len(hostEnds) != 2 {
		t.Fatalf("the host's ends of two machines are %v", hostEnds)
	}
	may := append(ways(guests.Public), target{"udp", network.DNSAddrs[0].String() + ":53"})
	mustNot := private
	for _, addr := range slices.Concat([]string{guests.HostAddr, network.GatewayAddr.String(), network.DNSAddrs[0].String()}, hostEnds, slotEnds) {
		mustNot = append(mustNot, ways(addr)...)
	}
	for _, addr := range slices.Concat([]string{guests.HostAddr}, hostEnds, slotEnds) {
		mustNot = append(mustNot, target{"tcp", addr + published})
	}
	all := slices.Concat(may, mustNot, overIPv6)
	began := time.Now()
	got := verdicts(t, all, func(input []byte) (string, error) {
		return from.Exec(fleet.ExecSpec{Argv: []string{"/root/probe", "-v6", "2001:db8:9::2/64,2001:db8:9::1"}}, input)
	})
	t.Logf("%d ways in %v", len(all), time.Since(began).Round(time.Millisecond))
	for _, at := range may {
		if !strings.HasPrefix(got[at], "answer ") {
			t.Errorf("control: the guest does not reach %v: %q", at, got[at])
		}
	}
	for _, at := range mustNot {
		if got[at] != "refused" {
			t.Errorf("%v is %q", at, got[at])
		}
	}
	for _, at := range overIPv6 {
		if got[at] != "silent" {
			t.Errorf("%v is %q", at, got[at])
		}
	}
	if len(v6) != 0 {
		t.Errorf("%d datagrams of the guest arrived over IPv6", len(v6))
	}
}

// greetEverywhere serves at all addresses of a world, and returns what arrives
// over IPv6.
func greetEverywhere(w *guests.World) <-chan string {
	for _, s := range []*guests.Space{w.Host, w.Beyond} {
		s.Greet("tcp", "0.0.0.0:80", "hello")
	}
	w.Host.Greet("udp", "0.0.0.0:81", "hello")
	for _, addr := range append([]string{guests.Public}, guests.Elsewhere...) {
		w.Beyond.Greet("udp", addr+":81", "hello") // an answer comes from where the question went
	}
	w.Beyond.Greet("udp", guests.Resolver+":53", "a name")
	w.Beyond.Greet("tcp", "["+guests.WorldAddr6+"]:80", "hello")
	return w.Beyond.Greet("udp", "["+guests.WorldAddr6+"]:81", "hello")
}

// inside runs the probe in a namespace of this machine.
func inside(s *guests.Space, program string, input []byte) (string, error) {
	cmd := exec.Command(program)
	cmd.Stdin = strings.NewReader(string(input))
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := s.Start(cmd); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return "", fmt.Errorf("%w: %s", err, errs.String())
	}
	return out.String(), nil
}
