package network

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// ruleset is a table under construction.
type ruleset struct {
	conn  *nftables.Conn
	table *nftables.Table
	sets  uint32
}

func (r *ruleset) chain(name string, hook *nftables.ChainHook, priority *nftables.ChainPriority, typ nftables.ChainType, policy nftables.ChainPolicy) *nftables.Chain {
	return r.conn.AddChain(&nftables.Chain{
		Name: name, Table: r.table, Hooknum: hook, Priority: priority, Type: typ, Policy: &policy,
	})
}

func (r *ruleset) add(c *nftables.Chain, rules ...[]expr.Any) {
	for _, exprs := range rules {
		r.conn.AddRule(&nftables.Rule{Table: r.table, Chain: c, Exprs: exprs})
	}
}

// set numbers the sets of a transaction itself: the library's own counter is
// shared by all connections and not safe for concurrent use.
func (r *ruleset) set(name string) *nftables.Set {
	r.sets++
	return &nftables.Set{Table: r.table, Name: name, KeyType: nftables.TypeIPAddr, ID: r.sets}
}

// addressSet is a named set of addresses in a table.
func (r *ruleset) addressSet(name string, addrs []netip.Addr) (*nftables.Set, error) {
	s := r.set(name)
	elements := make([]nftables.SetElement, len(addrs))
	for i, a := range addrs {
		elements[i].Key = a.AsSlice()
	}
	return s, r.conn.AddSet(s, elements)
}

// prefixSet is a named set of networks, sorted and without overlap.
func (r *ruleset) prefixSet(name string, prefixes []netip.Prefix) (*nftables.Set, error) {
	s := r.set(name)
	s.Interval = true
	var elements []nftables.SetElement
	for _, p := range prefixes {
		first := binary.BigEndian.Uint32(p.Addr().AsSlice())
		elements = append(elements, nftables.SetElement{Key: p.Addr().AsSlice()})
		// The end is the first address outside; a range up to the last
		// address of all has none.
		if end := uint64(first) + 1<<(32-p.Bits()); end < 1<<32 {
			elements = append(elements, nftables.SetElement{Key: addr4(uint32(end)).AsSlice(), IntervalEnd: true})
		}
	}
	return s, r.conn.AddSet(s, elements)
}
