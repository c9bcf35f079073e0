// Probe tries ways out of the machine it runs on and tells how each ended. With
// -v6 ADDRESS/BITS,GATEWAY it first gives eth0 what IPv6 needs. With -serve it
// greets whoever comes to TCP port 80 or UDP port 81 instead, with -work TIME it
// tells how much it got done in that time, and with -flood ADDRESS it sends
// datagrams there until it is ended.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// patience is how long an answer may take, on a machine that is busy with other
// tests. Those that must not come over IPv6 are not waited for so long.
func patience(overIPv6 bool) time.Duration {
	if overIPv6 {
		return 10 * time.Second
	}
	return 30 * time.Second
}

// target is what is tried to be reached, and which way.
type target struct {
	Way  string // tcp, udp, icmp, icmp6
	Addr string // with a port but for icmp
}

func main() {
	v6 := flag.String("v6", "", "")
	serving := flag.Bool("serve", false, "")
	working := flag.Duration("work", 0, "")
	flooding := flag.String("flood", "", "")
	flag.Parse()
	var err error
	switch {
	case *serving:
		err = serve()
	case *working > 0:
		_, err = fmt.Fprintln(os.Stdout, work(*working))
	case *flooding != "":
		err = flood(*flooding)
	default:
		err = run(*v6, os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

func run(v6 string, in io.Reader, out io.Writer) error {
	if v6 != "" {
		if err := setUp(v6); err != nil {
			return fmt.Errorf("IPv6: %w", err)
		}
	}
	var targets []target
	if err := json.NewDecoder(in).Decode(&targets); err != nil {
		return err
	}
	results := make([]string, len(targets))
	var wg sync.WaitGroup
	for i, t := range targets {
		wg.Go(func() { results[i] = try(t) })
	}
	wg.Wait()
	return json.NewEncoder(out).Encode(results)
}

func serve() error {
	l, err := net.Listen("tcp4", ":80")
	if err != nil {
		return err
	}
	u, err := net.ListenPacket("udp4", ":81") //nolint:noctx // it ends with the process
	if err != nil {
		return err
	}
	go func() {
		for buf := make([]byte, 1500); ; {
			if _, from, err := u.ReadFrom(buf); err == nil {
				_, _ = u.WriteTo([]byte("hello"), from) // who asks waits for it
			}
		}
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		_, _ = c.Write([]byte("hello")) // who asks waits for it
		_ = c.Close()
	}
}

// work counts kibibytes that were hashed.
func work(period time.Duration) int {
	block, n := make([]byte, 1024), 0
	for end := time.Now().Add(period); time.Now().Before(end); n++ {
		sum := sha256.Sum256(block)
		copy(block, sum[:])
	}
	return n
}

func flood(addr string) error {
	c, err := net.Dial("udp", addr) //nolint:noctx // a datagram's socket does not wait
	if err != nil {
		return err
	}
	for block := make([]byte, 1400); ; {
		_, _ = c.Write(block) // what does not go out is no attack
	}
}

// try is "answer TEXT", "refused", "silent", or what else went wrong.
func try(t target) string {
	var text string
	var err error
	if strings.HasPrefix(t.Way, "icmp") {
		text, err = ping(t.Way, t.Addr)
	} else {
		text, err = ask(t.Way, t.Addr)
	}
	var timeout interface{ Timeout() bool }
	switch {
	case err == nil:
		return "answer " + text
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EHOSTUNREACH):
		return "refused"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "silent"
	}
	return err.Error()
}

func ask(network, addr string) (string, error) {
	patience := patience(strings.HasPrefix(addr, "["))
	c, err := net.DialTimeout(network, addr, patience) //nolint:noctx // patience bounds it
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if network == "udp" {
		if _, err := c.Write([]byte("from a guest")); err != nil {
			return "", err
		}
	}
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	return string(buf[:n]), err
}

// ids tell the answers of one ping from those of another.
var ids struct {
	sync.Mutex
	last int
}

func ping(way, addr string) (string, error) {
	network, own, proto, request := "ip4:icmp", "0.0.0.0", 1, icmp.Type(ipv4.ICMPTypeEcho)
	if way == "icmp6" {
		network, own, proto, request = "ip6:ipv6-icmp", "::", 58, ipv6.ICMPTypeEchoRequest
	}
	c, err := icmp.ListenPacket(network, own)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }() // nothing is left in it
	if err := c.SetDeadline(time.Now().Add(patience(way == "icmp6"))); err != nil {
		return "", err
	}
	ids.Lock()
	ids.last++
	id := os.Getpid()<<8&0xff00 | ids.last
	ids.Unlock()
	data, err := (&icmp.Message{Type: request, Body: &icmp.Echo{ID: id, Seq: 1, Data: []byte("from a guest")}}).Marshal(nil)
	if err != nil {
		return "", err
	}
	to := net.ParseIP(addr)
	if _, err := c.WriteTo(data, &net.IPAddr{IP: to}); err != nil {
		return "", err
	}
	for buf := make([]byte, 1500); ; {
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			return "", err
		}
		m, err := icmp.ParseMessage(proto, buf[:n])
		if err != nil {
			continue
		}
		switch b := m.Body.(type) {
		case *icmp.Echo:
			if b.ID == id && m.Type != request {
				return "echo", nil
			}
		case *icmp.DstUnreach: // holds what was sent
			if h, err := icmp.ParseIPv4Header(b.Data); proto == 1 && err == nil && h.Dst.Equal(to) {
				return "", unix.EHOSTUNREACH
			}
		}
	}
}

// setUp gives the machine an address, and a gateway that need not be asked for.
func setUp(v6 string) error {
	own, gateway, _ := strings.Cut(v6, ",")
	l, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(own)
	if err != nil {
		return err
	}
	a.Flags = unix.IFA_F_NODAD
	if err := netlink.AddrReplace(l, a); err != nil {
		return err
	}
	neighbours, err := netlink.NeighList(l.Attrs().Index, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	if len(neighbours) == 0 {
		return errors.New("the gateway of IPv4 is not known")
	}
	at := neighbours[0]
	at.Family, at.State, at.IP = netlink.FAMILY_V6, netlink.NUD_PERMANENT, net.ParseIP(gateway)
	if err := netlink.NeighSet(&at); err != nil {
		return err
	}
	all := &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	return netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Gw: at.IP, Dst: all})
}
