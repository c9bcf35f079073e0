package network

import (
	"bytes"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Docker sets the policy of iptables' FORWARD chain to drop, and a packet that
// any table drops is gone whatever ours says. Docker leaves the chain
// DOCKER-USER to others, so that is where our packets are let pass.
const dockerUser = "DOCKER-USER"

// forwardChains finds iptables' FORWARD and Docker's chain for others; either
// may be nil. What legacy iptables holds is not visible here.
func forwardChains(conn *nftables.Conn) (forward, user *nftables.Chain, err error) {
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyIPv4)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range chains {
		if c.Table.Name != "filter" {
			continue
		}
		switch c.Name {
		case "FORWARD":
			forward = c
		case dockerUser:
			user = c
		}
	}
	return forward, user, nil
}

// syncDocker adds our accepts where Docker's policy would drop. It says what
// it cannot help.
func (f firewall) syncDocker() (problems []string, err error) {
	err = f.withNFT(func(conn *nftables.Conn) error {
		forward, user, err := forwardChains(conn)
		if err != nil {
			return err
		}
		if forward == nil || forward.Policy == nil || *forward.Policy != nftables.ChainPolicyDrop {
			return nil
		}
		if user == nil {
			problems = append(problems, fmt.Sprintf(
				"iptables' FORWARD policy is drop: guests have no way out until it accepts %s+ in both directions", f.names.linkPrefix()))
			return nil
		}
		present, err := f.dockerRules(conn)
		if err != nil || len(present) == 2 {
			return err
		}
		for _, r := range present {
			if err := conn.DelRule(r); err != nil {
				return err
			}
		}
		// Matches that iptables itself could have written: it refuses to work
		// on a table that holds others. Which packets may go to a guest is
		// decided in our own table.
		for _, direction := range []part{fromAny(f.names.linkPrefix()), toAny(f.names.linkPrefix())} {
			conn.InsertRule(&nftables.Rule{Table: user.Table, Chain: user, Exprs: rule(direction, part{&expr.Counter{}}, accept())})
		}
		return nil
	})
	return problems, err
}

// dockerRules are the rules in Docker's chain that name our links.
func (f firewall) dockerRules(conn *nftables.Conn) ([]*nftables.Rule, error) {
	_, user, err := forwardChains(conn)
	if err != nil || user == nil {
		return nil, err
	}
	rules, err := conn.GetRules(user.Table, user)
	if err != nil {
		return nil, err
	}
	var ours []*nftables.Rule
	for _, r := range rules {
		for _, e := range r.Exprs {
			if c, ok := e.(*expr.Cmp); ok && bytes.Equal(c.Data, []byte(f.names.linkPrefix())) {
				ours = append(ours, r)
				break
			}
		}
	}
	return ours, nil
}

func (f firewall) removeDocker() error {
	return f.withNFT(func(conn *nftables.Conn) error {
		rules, err := f.dockerRules(conn)
		if err != nil {
			return err
		}
		for _, r := range rules {
			if err := conn.DelRule(r); err != nil {
				return err
			}
		}
		return nil
	})
}
