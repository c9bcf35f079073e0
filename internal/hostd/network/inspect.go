package network

import (
	"fmt"

	"github.com/google/nftables"
)

// ForwardPolicy says whether the packet filter of this namespace drops what is
// forwarded, as Docker makes it, and whether it leaves room for accepts of
// others. It changes nothing.
func ForwardPolicy() (drops, room bool, err error) {
	conn, err := nftables.New()
	if err != nil {
		return false, false, fmt.Errorf("open nftables: %w", err)
	}
	forward, user, err := forwardChains(conn)
	if err != nil {
		return false, false, fmt.Errorf("list chains: %w", err)
	}
	drops = forward != nil && forward.Policy != nil && *forward.Policy == nftables.ChainPolicyDrop
	return drops, user != nil, nil
}
