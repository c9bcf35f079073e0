package network

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Whoever loses one set of rules, by accident or `nft flush ruleset`, is still
// held by the other.
func TestEachSetOfRulesHoldsAlone(t *testing.T) {
	w := newWorld(t, MTU)
	slot, g := w.guest(0)
	other, _ := w.guest(1)
	w.internet.listen("0.0.0.0:80", "private")
	w.host.listen("0.0.0.0:80", "host")
	w.inside(other).listen("0.0.0.0:80", "other guest")
	check := func(t *testing.T, forbidden ...string) {
		t.Helper()
		if got, err := g.ask("tcp", public+":80"); err != nil {
			t.Errorf("control: %q, %v", got, err)
		}
		for _, a := range forbidden {
			if got, err := g.knock("tcp", a+":80"); err == nil {
				t.Errorf("%s answers %q", a, got)
			}
		}
	}
	t.Run("the host's", func(t *testing.T) {
		w.inside(slot).nft("flush ruleset; add table ip x; add chain ip x nat { type nat hook postrouting priority 100; };" +
			"add rule ip x nat oifname up0 masquerade")
		check(t, append([]string{hostAddr, slot.HostAddr().String(), other.UplinkAddr().String()}, elsewhere[:8]...)...)
	})
	t.Run("the host's against forged sources", func(t *testing.T) {
		// Without translation the guest's own address is a forged one.
		got := w.internet.udp(public+":9", "ok")
		w.internet.route(hostAddr, GuestPrefix.Masked().String())
		w.inside(slot).nft("flush ruleset")
		c, err := g.dial("udp", "", public+":9")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte("forged")); err != nil {
			t.Fatal(err)
		}
		w.host.wantFirst(got, public+":9")
	})
	t.Run("the namespace's", func(t *testing.T) {
		_, g = w.guest(2)
		w.host.nft("flush ruleset; add table ip x; add chain ip x nat { type nat hook postrouting priority 100; };" +
			"add rule ip x nat oifname eth0 masquerade")
		check(t, append([]string{slot.HostAddr().String(), other.UplinkAddr().String()}, elsewhere...)...)
	})
}

func TestSyncRepairsTheHost(t *testing.T) {
	w := newWorld(t, MTU)
	_, g := w.guest(0)
	w.internet.listen(public+":80", "web")
	want := w.host.nft("")
	w.host.nft("flush ruleset")
	w.host.in(func() error { return writeSysctl("net/ipv4/ip_forward", "0") })
	if got, err := g.knock("tcp", public+":80"); err == nil {
		t.Fatalf("control: %q without rules and forwarding", got)
	}
	if err := w.mgr.Sync(background); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, w.host.nft("")); diff != "" {
		t.Error(diff)
	}
	if got, err := g.ask("tcp", public+":80"); err != nil || got != "web\n" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestOthersRulesAreLeftAlone(t *testing.T) {
	w := newWorld(t, MTU)
	w.host.nft("add table inet fuse-abcdef; add table ip nat; add chain ip nat x; add rule ip nat x counter accept")
	want := "table inet fuse-abcdef { } table ip nat { chain x { counter accept } }"
	others := func() string {
		text := w.host.nft("")
		if i := strings.Index(text, "table inet "+w.mgr.tableName()); i >= 0 {
			end := i + strings.Index(text[i:], "\n}\n") + 3
			text = text[:i] + text[end:]
		}
		return strings.Join(strings.Fields(text), " ")
	}
	w.slot(0)
	if err := w.mgr.Sync(background); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, others()); diff != "" {
		t.Error(diff)
	}
	if err := w.mgr.Uninstall(background); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, others()); diff != "" {
		t.Error(diff)
	}
}

func TestCloseTakesTheRulesOfAnIdleRegistry(t *testing.T) {
	w := newWorld(t, MTU)
	w.host.nft(docker + dockerUserChain)
	mine := func() int { return strings.Count(w.host.nft(""), w.mgr.tag) }
	second := w.manager()
	w.slot(0)
	busy := mine()
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if got := mine(); got != busy {
		t.Errorf("%d lines of rules after Close with a slot, were %d", got, busy)
	}
	w.remove(0)
	if err := w.manager().Close(); err != nil {
		t.Fatal(err)
	}
	if got := mine(); got != 0 {
		t.Errorf("%d lines of rules after Close without slots:\n%s", got, w.host.nft(""))
	}
}

// What others send is none of our business.
func TestOthersTrafficPasses(t *testing.T) {
	w := newWorld(t, MTU)
	lan := newNode(t)
	wire(w.host, "lan0", lan, "eth0", MTU)
	w.host.addr("lan0", "192.168.9.1/24")
	lan.addr("eth0", "192.168.9.2/24")
	lan.route("192.168.9.1", "0.0.0.0/0")
	w.internet.route(hostAddr, "192.168.9.0/24")
	w.internet.listen("172.16.0.1:80", "intranet")
	w.host.listen("0.0.0.0:81", "host")
	if got, err := lan.ask("tcp", "172.16.0.1:80"); err != nil || got != "intranet\n" {
		t.Errorf("through the host: %q, %v", got, err)
	}
	if got, err := lan.ask("tcp", "192.168.9.1:81"); err != nil || got != "host\n" {
		t.Errorf("to the host: %q, %v", got, err)
	}
}

// docker leaves a host's rules as Docker does.
const docker = `add table ip filter
add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }
`

const dockerUserChain = `add chain ip filter DOCKER-USER
insert rule ip filter FORWARD counter jump DOCKER-USER
add rule ip filter DOCKER-USER counter return
`

func TestDockerLetsGuestsPass(t *testing.T) {
	w := newWorld(t, MTU)
	_, g := w.guest(0)
	w.internet.listen(public+":80", "web")
	w.internet.listen("172.16.0.1:80", "private")
	w.host.nft(docker)
	if got, err := g.knock("tcp", public+":80"); err == nil {
		t.Fatalf("control: %q through a policy of drop", got)
	}
	if err := w.mgr.Sync(background); err != nil {
		t.Fatal(err)
	}
	if p := w.mgr.Problems(); len(p) != 1 || !strings.Contains(p[0], "FORWARD policy is drop") {
		t.Errorf("problems without DOCKER-USER: %q", p)
	}

	w.host.nft(dockerUserChain)
	filter := func() string {
		_, text, _ := strings.Cut(w.host.nft(""), "table ip filter")
		text, _, _ = strings.Cut(text, "\n}")
		return text
	}
	before := filter()
	for range 2 { // the second time there is nothing to add
		if err := w.mgr.Sync(background); err != nil {
			t.Fatal(err)
		}
	}
	if p := w.mgr.Problems(); len(p) != 0 {
		t.Errorf("problems with DOCKER-USER: %q", p)
	}
	if got, err := g.ask("tcp", public+":80"); err != nil || got != "web\n" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := g.ask("tcp", "172.16.0.1:80"); !refused(err) {
		t.Errorf("private: %q, %v; want a refusal", got, err)
	}
	objects, err := w.mgr.List()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(slices.DeleteFunc(objects, func(o Object) bool { return o.Name != "rule in ip filter DOCKER-USER" })); n != 2 {
		t.Errorf("%d rules in DOCKER-USER, want 2:\n%s", n, w.host.nft(""))
	}

	if err := w.mgr.Uninstall(background); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, filter()); diff != "" {
		t.Error(diff)
	}
}

// iptables refuses to show or change a table with rules that it cannot read.
func TestIptablesReadsOurRulesForDocker(t *testing.T) {
	w := newWorld(t, MTU)
	iptables := func(args ...string) string {
		t.Helper()
		var out []byte
		w.host.in(func() (err error) {
			out, err = exec.Command("iptables-nft", args...).CombinedOutput()
			if err != nil {
				t.Logf("%s", out)
			}
			return err
		})
		return string(out)
	}
	iptables("-P", "FORWARD", "DROP")
	iptables("-N", dockerUser)
	iptables("-A", "FORWARD", "-j", dockerUser)
	if err := w.mgr.Sync(background); err != nil {
		t.Fatal(err)
	}
	got := iptables("-S", dockerUser)
	for _, want := range []string{"-i " + w.mgr.linkPrefix() + "+ -j ACCEPT", "-o " + w.mgr.linkPrefix() + "+ -j ACCEPT"} {
		if !strings.Contains(got, want) {
			t.Errorf("iptables does not show %q:\n%s", want, got)
		}
	}
}

func TestPool(t *testing.T) {
	w := newWorld(t, MTU)
	if w.mgr.pool.Bits() != 20 || !defaultPool.Overlaps(w.mgr.pool.Prefix) {
		t.Errorf("default pool %s", w.mgr.pool)
	}
	for _, tt := range []struct{ pool, want string }{
		{"198.51.0.0/16", "overlaps 198.51.100.0/24"},
		{"10.77.0.0/31", "at least a /30"},
		{"10.77.0.1/24", "must be an IPv4 network"},
		{"fd00::/64", "must be an IPv4 network"},
	} {
		_, err := New(Config{Registry: "r", HostNS: w.host.path(), Pool: netip.MustParsePrefix(tt.pool)})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("pool %s: %v, want %q", tt.pool, err, tt.want)
		}
	}
	t.Run("a taken block is passed over", func(t *testing.T) {
		taken := w.mgr.pool
		w.host.addr("eth0", taken.Addr().Next().String()+"/24")
		if got, err := choosePool(w.mgr.links, w.mgr.names, netip.Prefix{}, anyBlock); err != nil || got.Prefix == taken.Prefix || got.Bits() != 20 {
			t.Errorf("%s, %v after %s was taken", got, err, taken)
		}
	})
	t.Run("no block is left", func(t *testing.T) {
		w.host.route("198.51.100.1", defaultPool.String())
		if _, err := choosePool(w.mgr.links, w.mgr.names, netip.Prefix{}, anyBlock); err == nil || !strings.Contains(err.Error(), "configure a pool") {
			t.Errorf("%v", err)
		}
	})
	t.Run("a public pool is still denied", func(t *testing.T) {
		m, err := New(Config{Registry: w.registry + " public", HostNS: w.host.path(), Pool: netip.MustParsePrefix("192.88.99.0/28"), Resolvers: publicResolvers})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		if m.Slots() != 4 {
			t.Errorf("%d slots in a /28, want 4", m.Slots())
		}
		if got := strings.Join(strings.Fields(w.host.nft("")), " "); !strings.Contains(got, "192.88.99.0/28, 192.168.0.0/16") {
			t.Errorf("not in the denied set: %s", got)
		}
		if err := m.Uninstall(background); err != nil {
			t.Fatal(err)
		}
	})
}

func anyBlock(netip.Prefix) (bool, error) { return true, nil }

// Two agents whose search begins at the same block have pools of their own, also
// while neither has a slot; managers of one registry share theirs.
func TestPoolsOfAgentsThatBeginAlike(t *testing.T) {
	w := newWorld(t, MTU)
	open := func(registry string) *Manager {
		t.Helper()
		m, err := New(Config{Registry: registry, HostNS: w.host.path(), Resolvers: publicResolvers})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	closed := func(m *Manager) {
		t.Helper()
		if err := errors.Join(m.Uninstall(background), m.Close()); err != nil {
			t.Fatal(err)
		}
	}
	tags := map[string]string{} // of registries, by what their search begins at
	var first, second string
	for n := 0; second == ""; n++ {
		registry := fmt.Sprint(w.registry, " ", n)
		sum := sha256.Sum256([]byte(registry))
		begin := hex.EncodeToString(sum[2:3]) // the last two digits of the tag count to 256
		if first = tags[begin]; first != "" {
			second = registry
		}
		tags[begin] = registry
	}
	a, b, again := open(first), open(second), open(first)
	if a.pool == b.pool || a.pool != again.pool {
		t.Errorf("pools %s, %s, and once more %s", a.pool, b.pool, again.pool)
	}
	for _, m := range []*Manager{a, b} {
		if _, err := m.Create(background, 1); err != nil {
			t.Error(err)
		}
	}
	closed(again)
	was := a.pool
	closed(a)
	closed(b)
	if a = open(second); a.pool != was {
		t.Errorf("the pool is %s, and %s is nobody's any more", a.pool, was)
	}
	closed(a)
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "no registry id") {
		t.Errorf("no registry: %v", err)
	}
	if _, err := New(Config{Registry: "r", HostNS: "/nonexistent"}); err == nil || !strings.Contains(err.Error(), "host's network namespace") {
		t.Errorf("no namespace: %v", err)
	}
}

func TestParseResolvConf(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"two", "search example.org\nnameserver 10.0.0.53\nnameserver 9.9.9.9\n", "[10.0.0.53 9.9.9.9]"},
		{"no more than aliases", "nameserver 10.0.0.1\nnameserver 10.0.0.2\nnameserver 10.0.0.3\n", "[10.0.0.1 10.0.0.2]"},
		{"only a stub", "nameserver 127.0.0.53\noptions edns0\n", "[]"},
		{"comments and IPv6", "# nameserver 1.1.1.1\nnameserver fe80::1%eth0\nnameserver\t192.0.2.1 # here\n", "[192.0.2.1]"},
		{"twice the same", "nameserver 10.0.0.1\nnameserver 10.0.0.1\n", "[10.0.0.1]"},
		{"nonsense", "nameserver\nnameserver here\nnameserver 0.0.0.0\n\x00\xff", "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got strings.Builder
			got.WriteString("[")
			for i, a := range parseResolvConf(tt.text) {
				if i > 0 {
					got.WriteString(" ")
				}
				got.WriteString(a.String())
			}
			if got.WriteString("]"); got.String() != tt.want {
				t.Errorf("%s, want %s", got.String(), tt.want)
			}
		})
	}
}

func TestHostResolvers(t *testing.T) {
	saved := resolvConfs
	defer func() { resolvConfs = saved }()
	stub := filepath.Join(t.TempDir(), "stub")
	if err := os.WriteFile(stub, []byte("nameserver 127.0.0.53\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	behind := filepath.Join(t.TempDir(), "behind")
	if err := os.WriteFile(behind, []byte("nameserver 10.1.1.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	resolvConfs = []string{stub, behind}
	if got := hostResolvers(); len(got) != 1 || got[0].String() != "10.1.1.1" {
		t.Errorf("behind the stub: %v", got)
	}
	resolvConfs = []string{stub, "/nonexistent"}
	if got := hostResolvers(); !slices.Equal(got, publicResolvers) {
		t.Errorf("nothing usable: %v", got)
	}
}

func TestDeniedIsSortedAndDisjoint(t *testing.T) {
	for i := 1; i < len(denied); i++ {
		if a, b := denied[i-1], denied[i]; a.Overlaps(b) || a.Addr().Compare(b.Addr()) >= 0 || b != b.Masked() {
			t.Errorf("%s before %s", a, b)
		}
	}
}
