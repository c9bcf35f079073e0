package network

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// firewall is the host side of the rules: a table of this registry and two
// rules among Docker's.
type firewall struct {
	names names
	host  netns.NsHandle
	pool  pool
}

func (f firewall) nft() (*nftables.Conn, error) {
	return nftables.New(nftables.WithNetNSFd(int(f.host)), nftables.AsLasting())
}

// withNFT runs fn with a connection to the host's nftables and sends what fn
// has asked for as one transaction.
func (f firewall) withNFT(fn func(*nftables.Conn) error) error {
	conn, err := f.nft()
	if err != nil {
		return err
	}
	err = fn(conn)
	if err == nil {
		err = conn.Flush()
	}
	if cerr := conn.CloseLasting(); err == nil {
		err = cerr
	}
	return err
}

func (f firewall) hostTable() *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: f.names.tableName()}
}

// syncHostRules replaces the table in one transaction: no packet sees it
// half made, and the connections that exist keep their translation.
func (f firewall) sync(resolvers []netip.Addr, ports []Published) error {
	return f.withNFT(func(conn *nftables.Conn) error {
		table := conn.AddTable(f.hostTable())
		conn.DelTable(table)
		r := &ruleset{conn: conn, table: conn.AddTable(f.hostTable())}
		r.publish(f.names.linkPrefix(), f.pool.addrs, ports)
		return r.host(f.names.linkPrefix(), f.pool.Prefix, resolvers)
	})
}

func (f firewall) remove() error {
	return f.withNFT(func(conn *nftables.Conn) error {
		conn.DelTable(conn.AddTable(f.hostTable()))
		return nil
	})
}

// listRules finds the table and the accepts among Docker's rules.
func (f firewall) listRules() ([]Object, error) {
	var all []Object
	err := f.withNFT(func(conn *nftables.Conn) error {
		tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
		if err != nil {
			return err
		}
		for _, t := range tables {
			if t.Name == f.names.tableName() {
				all = append(all, Object{Kind: "nft", Name: "table inet " + t.Name, Slot: -1})
			}
		}
		rules, err := f.dockerRules(conn)
		for range rules {
			all = append(all, Object{Kind: "nft", Name: "rule in ip filter " + dockerUser, Slot: -1})
		}
		return err
	})
	return all, err
}

// host writes the rules for all links that begin with ours. They repeat what
// the namespaces enforce and add what only the host can tell: which addresses
// are its own, and which links lead to other guests.
func (r *ruleset) host(ours string, pool netip.Prefix, resolvers []netip.Addr) error {
	deny := denied
	if !slices.ContainsFunc(denied, pool.Overlaps) {
		deny = append(slices.Clone(denied), pool)
		slices.SortFunc(deny, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	}
	private, err := r.prefixSet("denied", deny)
	if err != nil {
		return err
	}
	resolverSet, err := r.addressSet("resolvers", unique(resolvers))
	if err != nil {
		return err
	}
	// A query that the chain dns has sent on. Not just any translated
	// connection: ports that the host publishes for others are not for guests.
	query := func(protocolNumber byte) []expr.Any {
		return rule(translated(), destIn(resolverSet), protocol(protocolNumber), port(dnsPort), accept())
	}

	spoof := r.chain("antispoof", nftables.ChainHookPrerouting, nftables.ChainPriorityMangle, nftables.ChainTypeFilter, nftables.ChainPolicyAccept)
	r.add(spoof,
		rule(fromAny(ours), isNotIPv4(), drop()),
		rule(fromAny(ours), wrongWay(), drop()),
	)

	dns := r.chain("dns", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest, nftables.ChainTypeNAT, nftables.ChainPolicyAccept)
	for i, alias := range DNSAddrs {
		resolver := resolvers[i%len(resolvers)]
		for _, p := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP} {
			r.add(dns, rule(fromAny(ours), dest(alias), protocol(p), port(dnsPort), redirectTo(resolver)))
		}
	}

	// To the host itself: a resolver may run here.
	input := r.chain("input", nftables.ChainHookInput, nftables.ChainPriorityFilter, nftables.ChainTypeFilter, nftables.ChainPolicyAccept)
	r.add(input,
		rule(notFromAny(ours), accept()),
		rule(known(), translated(), accept()), // a published port answers a program of the host
		query(unix.IPPROTO_UDP),
		query(unix.IPPROTO_TCP),
		rule(protocol(unix.IPPROTO_TCP), reset()),
		rule(refuse()),
	)

	forward := r.chain("forward", nftables.ChainHookForward, nftables.ChainPriorityFilter, nftables.ChainTypeFilter, nftables.ChainPolicyAccept)
	r.add(forward,
		rule(fromAny(ours), clampMSS()),
		rule(toAny(ours), clampMSS()),
		rule(fromAny(ours), toAny(hostPrefix), drop()),
		rule(fromAny(ours), known(), accept()),
		rule(toAny(ours), known(), accept()),
		rule(toAny(ours), translated(), accept()), // a published port
		rule(toAny(ours), drop()),
		rule(notFromAny(ours), accept()),
		query(unix.IPPROTO_UDP),
		query(unix.IPPROTO_TCP),
		rule(destIn(private), protocol(unix.IPPROTO_TCP), reset()),
		rule(destIn(private), refuse()),
	)

	out := r.chain("nat", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, nftables.ChainTypeNAT, nftables.ChainPolicyAccept)
	r.add(out, rule(sourceIn(pool), notToAny(ours), masquerade()))
	return nil
}

func unique(addrs []netip.Addr) []netip.Addr {
	addrs = slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)
	return slices.Compact(addrs)
}
