package network

import (
	"fmt"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// addGuestRules fills the namespace of the calling thread, or replaces what is
// there in one transaction. But for the published ports the rules are the same
// in every namespace.
func addGuestRules(ports []Published) error {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return err
	}
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: guestTable}
	conn.DelTable(conn.AddTable(table))
	r := &ruleset{conn: conn, table: conn.AddTable(table)}
	err = r.guest()
	r.publishInside(ports)
	if err == nil {
		err = conn.Flush()
	}
	if cerr := conn.CloseLasting(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	return nil
}

func (r *ruleset) guest() error {
	private, err := r.prefixSet("denied", denied)
	if err != nil {
		return err
	}
	dns, err := r.addressSet("dns", DNSAddrs)
	if err != nil {
		return err
	}

	// Before connection tracking, so that a guest that forges its address
	// costs nothing.
	spoof := r.chain("antispoof", nftables.ChainHookPrerouting, nftables.ChainPriorityRaw, nftables.ChainTypeFilter, nftables.ChainPolicyAccept)
	r.add(spoof,
		rule(from(TapName), isNotIPv4(), drop()),
		rule(from(TapName), notSource(GuestAddr), drop()),
	)

	// To the namespace itself: answers to Dial, nothing else.
	input := r.chain("input", nftables.ChainHookInput, nftables.ChainPriorityFilter, nftables.ChainTypeFilter, nftables.ChainPolicyDrop)
	r.add(input,
		rule(known(), accept()),
		rule(from(TapName), protocol(unix.IPPROTO_TCP), reset()),
		rule(from(TapName), refuse()),
	)

	// Through it: out to what is public, back what belongs to it.
	forward := r.chain("forward", nftables.ChainHookForward, nftables.ChainPriorityFilter, nftables.ChainTypeFilter, nftables.ChainPolicyDrop)
	r.add(forward,
		rule(known(), accept()),
		rule(invalid(), drop()),
		rule(from(TapName), overConns(maxConns), refuse()),
		rule(from(uplinkName), to(TapName), overConns(maxConns), refuse()),
		rule(from(uplinkName), to(TapName), translated(), accept()), // a published port
		rule(destIn(dns), protocol(unix.IPPROTO_UDP), port(dnsPort), accept()),
		rule(destIn(dns), protocol(unix.IPPROTO_TCP), port(dnsPort), accept()),
		rule(destIn(private), protocol(unix.IPPROTO_TCP), reset()),
		rule(destIn(private), refuse()),
		rule(from(TapName), to(uplinkName), isIPv4(), accept()),
	)

	// The host knows the namespace's address only.
	out := r.chain("nat", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource, nftables.ChainTypeNAT, nftables.ChainPolicyAccept)
	r.add(out, rule(to(uplinkName), masquerade()))
	return nil
}
