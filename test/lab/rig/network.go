package rig

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Numbers of the lab's network: its first addresses are this machine's own,
// for who tests and for the database, so that either can be cut off alone.
const (
	ourAddr  = 1
	dbAddr   = 2
	servers  = 11 // the first server
	hosts    = 21 // the first host
	prefix   = 24
	firstNet = 0x0ab70000 // 10.183.0.0, of which a lab takes the first free /24
)

// block is what the bridge swallows: what goes from one address to another;
// the zero address is any.
type block struct{ from, to netip.Addr }

// fabric is the lab's network: a bridge in a namespace of its own.
type fabric struct {
	run     *run
	base    uint32
	blocked []block
}

func (f *fabric) addr(n int) netip.Addr {
	v := f.base + uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

// build makes the bridge and this machine's link to it.
func (f *fabric) build() error {
	// Several labs must not choose the same network at the same time.
	all, err := lockFile(filepath.Join(runs, "lock"), unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer all.Close()
	if err := f.choose(); err != nil {
		return err
	}
	space, link := f.run.netns("net"), f.run.rootLink()
	return inAll(nil,
		"ip netns add "+space,
		"ip -n "+space+" link set lo up",
		"ip -n "+space+" link add name lan type bridge forward_delay 0",
		"ip -n "+space+" link set lan up",
		"ip link add "+link+" type veth peer name ctl netns "+space,
		"ip -n "+space+" link set ctl master lan up",
		fmt.Sprintf("ip addr add %s/%d dev %s", f.addr(ourAddr), prefix, link),
		fmt.Sprintf("ip addr add %s/%d dev %s", f.addr(dbAddr), prefix, link),
		"ip link set "+link+" up",
	)
}

// choose finds a network that nothing on this machine uses.
func (f *fabric) choose() error {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for n := range uint32(256) {
		f.base = firstNet + n<<8
		ours := netip.PrefixFrom(f.addr(0), prefix)
		free := true
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Overlaps(ours) {
				free = false
			}
		}
		if free {
			return nil
		}
	}
	return errors.New("no network of 10.183.0.0/16 is free for a lab")
}

// attach makes a node's namespace and its link to the bridge.
func (f *fabric) attach(name string, addr netip.Addr) error {
	space, node := f.run.netns("net"), f.run.netns(name)
	a := addr.As4()
	// A machine keeps its MAC over a reboot, and its neighbours know it.
	mac := fmt.Sprintf("02:fb:%02x:%02x:%02x:%02x", a[0], a[1], a[2], a[3])
	err := inAll(nil,
		"ip netns add "+node,
		"ip -n "+node+" link set lo up",
		"ip -n "+space+" link add "+name+" type veth peer name eth0 address "+mac+" netns "+node,
		"ip -n "+space+" link set "+name+" master lan up",
		fmt.Sprintf("ip -n %s addr add %s/%d dev eth0", node, addr, prefix),
		"ip -n "+node+" link set eth0 up",
	)
	if err != nil {
		return err
	}
	return inNamespace(f.run.nsPath(name), func() error { return noChecksumOffload("eth0") })
}

// detach removes a node's namespace and its link.
func (f *fabric) detach(name string) error {
	if err := command("ip", "netns", "delete", f.run.netns(name)); err != nil {
		return err
	}
	// The other end goes a moment after the namespace; its name is needed again.
	probe := append(f.run.in("net"), "ip", "link", "show", name)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		there := exec.Command(probe[0], probe[1:]...).Run() == nil //nolint:noctx // it ends by itself
		if !there {
			return nil
		}
		<-time.After(10 * time.Millisecond)
	}
	return fmt.Errorf("the link of %s does not go", name)
}

// apply makes the bridge swallow exactly what is blocked. Address resolution
// passes, so what is cut off is silent rather than refused.
func (f *fabric) apply() error {
	var b strings.Builder
	b.WriteString("add table bridge lab\ndelete table bridge lab\n")
	b.WriteString("table bridge lab {\n chain forward {\n  type filter hook forward priority 0; policy accept;\n")
	for _, x := range f.blocked {
		b.WriteString("  ")
		if x.from.IsValid() {
			fmt.Fprintf(&b, "ip saddr %s ", x.from)
		}
		if x.to.IsValid() {
			fmt.Fprintf(&b, "ip daddr %s ", x.to)
		}
		b.WriteString("drop\n")
	}
	b.WriteString(" }\n}\n")
	argv := append(f.run.in("net"), "nft", "-f", "-")
	cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // it ends by itself
	cmd.Stdin = strings.NewReader(b.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// node is whatever has a link to the bridge.
type node struct {
	l    *Lab
	name string // of its link; h1 is the first host
	addr netip.Addr
	lag  *lag // while it is slow
}

// Addr is its address in the lab.
func (n *node) Addr() netip.Addr { return n.addr }

// Cut swallows everything to and from it, as a broken network does: nothing is
// closed, nothing refused.
func (n *node) Cut() {
	n.l.t.Helper()
	n.l.block(block{from: n.addr}, block{to: n.addr})
}

// CutOut swallows what it sends; what others send still arrives.
func (n *node) CutOut() {
	n.l.t.Helper()
	n.l.block(block{from: n.addr})
}

// CutIn swallows what is sent to it.
func (n *node) CutIn() {
	n.l.t.Helper()
	n.l.block(block{to: n.addr})
}

// CutFrom parts it from one other node, both ways.
func (n *node) CutFrom(other interface{ Addr() netip.Addr }) {
	n.l.t.Helper()
	n.l.block(block{n.addr, other.Addr()}, block{other.Addr(), n.addr})
}

// Heal ends everything that was done to its link.
func (n *node) Heal() {
	n.l.t.Helper()
	n.l.unblock(n.addr)
	n.hasten()
}

// Slow delays each frame to and from it by delay, and by up to jitter more. The
// order stays. It replaces an earlier Slow.
func (n *node) Slow(delay, jitter time.Duration) {
	n.l.t.Helper()
	n.hasten()
	lag, err := newLag(n.l.run, n.name, delay, jitter)
	if err != nil {
		n.l.t.Fatalf("slow down %s: %v", n.name, err)
	}
	n.lag = lag
}

func (n *node) hasten() {
	n.l.t.Helper()
	if n.lag == nil {
		return
	}
	if err := n.lag.close(); err != nil {
		n.l.t.Fatalf("let %s be quick again: %v", n.name, err)
	}
	n.lag = nil
}

func (l *Lab) block(what ...block) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fabric.blocked = append(l.fabric.blocked, what...)
	if err := l.fabric.apply(); err != nil {
		l.t.Fatalf("cut a link: %v", err)
	}
}

// unblock lets everything to and from an address pass.
func (l *Lab) unblock(addr netip.Addr) {
	l.t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.fabric.blocked[:0]
	for _, b := range l.fabric.blocked {
		if b.from != addr && b.to != addr {
			left = append(left, b)
		}
	}
	l.fabric.blocked = left
	if err := l.fabric.apply(); err != nil {
		l.t.Fatalf("heal a link: %v", err)
	}
}

// database is the address that servers know the database by.
type database struct{ addr netip.Addr }

// Addr is the database's, for Server.CutFrom.
func (d database) Addr() netip.Addr { return d.addr }

// tunDevice makes taps.
const tunDevice = "/dev/net/tun"

var errNoTun = fmt.Errorf("%s is missing: the kernel's tun driver is needed", tunDevice)

// available says what this machine lacks for a lab.
func available() error {
	if os.Geteuid() != 0 {
		return errors.New("a lab needs root")
	}
	for _, program := range []string{"ip", "nft", "nsenter", "mount"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: run tools/deps test", err)
		}
	}
	if _, err := os.Stat(tunDevice); err != nil {
		return errNoTun
	}
	return nil
}
