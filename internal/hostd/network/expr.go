package network

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A match or statement of a rule, as nft would compile it. Rules are written
// as rule(match, match, verdict).
type part = []expr.Any

func rule(parts ...part) []expr.Any { return slices.Concat(parts...) }

func load(key expr.MetaKey) expr.Any { return &expr.Meta{Key: key, Register: 1} }

func equal(data []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}
}

func unequal(data []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: data}
}

// ifname compares a whole interface name; without the padding it would be a
// prefix, which is what nft makes of "name*".
func ifname(name string) []byte {
	return append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...)
}

func from(iface string) part { return part{load(expr.MetaKeyIIFNAME), equal(ifname(iface))} }
func to(iface string) part   { return part{load(expr.MetaKeyOIFNAME), equal(ifname(iface))} }

func fromAny(prefix string) part { return part{load(expr.MetaKeyIIFNAME), equal([]byte(prefix))} }
func toAny(prefix string) part   { return part{load(expr.MetaKeyOIFNAME), equal([]byte(prefix))} }
func notFromAny(prefix string) part {
	return part{load(expr.MetaKeyIIFNAME), unequal([]byte(prefix))}
}
func notToAny(prefix string) part { return part{load(expr.MetaKeyOIFNAME), unequal([]byte(prefix))} }

func isIPv4() part    { return part{load(expr.MetaKeyNFPROTO), equal([]byte{unix.NFPROTO_IPV4})} }
func isNotIPv4() part { return part{load(expr.MetaKeyNFPROTO), unequal([]byte{unix.NFPROTO_IPV4})} }

func protocol(p byte) part { return part{load(expr.MetaKeyL4PROTO), equal([]byte{p})} }

// The offsets of the addresses in an IPv4 header.
const (
	srcAt = 12
	dstAt = 16
)

func header(at uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: at, Len: 4}
}

func notSource(a netip.Addr) part {
	return slices.Concat(isIPv4(), part{header(srcAt), unequal(a.AsSlice())})
}

func dest(a netip.Addr) part { return slices.Concat(isIPv4(), part{header(dstAt), equal(a.AsSlice())}) }

func destIn(s *nftables.Set) part {
	return slices.Concat(isIPv4(), part{header(dstAt), &expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID}})
}

func sourceIn(p netip.Prefix) part {
	mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-p.Bits()))
	return slices.Concat(isIPv4(), part{
		header(srcAt),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		equal(p.Masked().Addr().AsSlice()),
	})
}

// port matches the destination port; a protocol match comes before it.
func port(n uint16) part {
	return part{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		equal(binaryutil.BigEndian.PutUint16(n)),
	}
}

func conntrack(key expr.CtKey, bits uint32) part {
	return part{
		&expr.Ct{Key: key, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		unequal(make([]byte, 4)),
	}
}

func known() part {
	return conntrack(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)
}
func invalid() part { return conntrack(expr.CtKeySTATE, expr.CtStateBitINVALID) }

// translated matches connections whose destination some rule has changed.
func translated() part { return conntrack(expr.CtKeySTATUS, 1<<5) } // IPS_DST_NAT

func overConns(n uint32) part {
	return part{&expr.Connlimit{Count: n, Flags: expr.NFT_CONNLIMIT_F_INV}}
}

// wrongWay matches a source address whose way back is not the interface that
// the packet came in by.
func wrongWay() part {
	return part{&expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true}, equal(make([]byte, 4))}
}

// clampMSS makes TCP handshakes name a segment size that the route carries, for
// uplinks with a smaller MTU and routers that swallow what would say so.
func clampMSS() part {
	return slices.Concat(protocol(unix.IPPROTO_TCP), part{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{0x06}, Xor: []byte{0}}, // SYN and RST
		equal([]byte{0x02}),
		&expr.Rt{Register: 1, Key: expr.RtTCPMSS},
		&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 2, Size: 2},
		&expr.Exthdr{SourceRegister: 1, Type: 2, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt},
	})
}

func verdict(kind expr.VerdictKind) part { return part{&expr.Verdict{Kind: kind}} }

func accept() part { return verdict(expr.VerdictAccept) }
func drop() part   { return part{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}} }

// refuse answers at once, so that a guest fails fast instead of waiting.
func refuse() part {
	return part{&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}}
}

func reset() part {
	return part{&expr.Counter{}, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}
}

func masquerade() part { return part{&expr.Masq{}} }

func redirectTo(a netip.Addr) part {
	return part{
		&expr.Immediate{Register: 1, Data: a.AsSlice()},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
	}
}
