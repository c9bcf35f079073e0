// Package network gives each virtual machine of a host a network of its own.
//
// A slot is a network namespace with a tap for the guest and a veth to the
// host. Whatever the guest can see (addresses, MACs, MTU, name servers) is the
// same in every slot, so a snapshot, fork or migrated guest finds in its new
// slot what it left in the old one. What differs from slot to slot, a /30 on
// the veth, the guest cannot see.
//
// A guest reaches the public internet and its name servers, and nothing else:
// no other guest, no address of the host, no private, link-local or metadata
// address, no IPv6. The namespace enforces this for its guest with constant
// rules; the host enforces it again for all slots in one table of its own.
// Losing either set of rules (`nft flush ruleset`) opens nothing private.
//
// Objects are named after a hash of the registry id and the slot number, so a
// sweep can tell whose they are. docs/design/network.md has the picture and
// the table of rules.
package network
