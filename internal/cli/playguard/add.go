package playguard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/fusevm/fuse/internal/api/client"
	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/playguard/sshx"
)

// adding is one "marquee add".
type adding struct {
	marquees
	name, identity, agent, root string
	hostKeys, policy            []string
	acceptNew                   bool

	hops []sshx.Hop // jump hosts nearest first, the marquee last
	keys []keyFile  // that may be tried, besides the one in req
	req  gen.AddMarquee
}

func (a marquees) add() *cobra.Command {
	x := &adding{marquees: a}
	cmd := a.verb("add DESTINATION", "Register a Docker host that is reached over SSH", cobra.ExactArgs(1), func(cmd *cobra.Command, p client.Playguard, args []string) error {
		m, err := x.run(cmd.Context(), p, args[0])
		return a.showMarquee(m, err)
	})
	cmd.Long = "DESTINATION is a Host of ~/.ssh/config, user@host or user@host:port. HostName, User,\n" +
		"Port, IdentityFile, IdentityAgent, ProxyJump, HostKeyAlias and UserKnownHostsFile of the\n" +
		"configuration count. Who logs in must be able to use Docker.\n\n" +
		"The private key goes to the server, which keeps it sealed and shows it to nobody. An agent\n" +
		"is used by the server itself, and has to be there whenever it connects.\n\n" +
		"The host key is compared with your known hosts; one that they do not have is shown and\n" +
		"asked for. From then on it is pinned: a host that shows another is never connected to."
	f := cmd.Flags()
	f.StringVar(&x.name, "name", "", "its `name` (default: the destination's)")
	f.StringVarP(&x.identity, "identity", "i", "", "private key `file` without passphrase (default: as ssh chooses)")
	f.StringVar(&x.agent, "agent", "", "use the SSH agent at this `socket` of the server's machine")
	f.StringVar(&x.root, "root", "", "`directory` on the host for what Fuse keeps there (default /opt/fuse)")
	f.StringSliceVar(&x.hostKeys, "host-key", nil, "accept the host key with this `fingerprint` (SHA256:…) without asking")
	f.BoolVar(&x.acceptNew, "accept-new", false, "accept host keys that your known hosts do not have, without asking")
	policyFlag(cmd, &x.policy)
	return cmd
}

func (x *adding) run(ctx context.Context, p client.Playguard, destination string) (m gen.Marquee, err error) {
	config, err := sshx.LocalConfig()
	if err != nil {
		return m, err
	}
	if x.hops, err = config.Resolve(destination); err != nil {
		return m, err
	}
	if x.req.Policy, err = x.parsePolicy(x.policy); err != nil {
		return m, err
	}
	host := x.hops[len(x.hops)-1]
	x.req.Name, x.req.Address, x.req.User, x.req.Root = or(x.name, host.Alias), host.Address, host.User, x.root
	for _, h := range x.hops[:len(x.hops)-1] {
		x.req.Jumps = append(x.req.Jumps, gen.SSHHop{Address: h.Address, User: h.User})
	}
	if err := x.credentials(host); err != nil {
		return m, err
	}
	// Each host may have a key to confirm, and any of our keys may be the one.
	for range len(x.hops) + len(x.keys) + 1 {
		m, err = p.AddMarquee(ctx, x.req)
		var answer *client.Error
		switch {
		case !errors.As(err, &answer):
			return m, err
		case answer.Details["reason"] == "host_key_unconfirmed":
			if err := x.confirm(answer.Details); err != nil {
				return m, err
			}
		case answer.Details["reason"] == "auth" && len(x.keys) > 0:
			x.next()
		default:
			return m, err
		}
	}
	return m, err
}

// keyFile is a private key of the person's.
type keyFile struct {
	path string
	key  []byte
}

// next takes the next key.
func (x *adding) next() {
	k := x.keys[0]
	x.keys, x.req.Key = x.keys[1:], string(k.key)
	x.Progress("the key %s goes to the server, which keeps it sealed", k.path)
}

// credentials finds what the server is to log in with.
func (x *adding) credentials(host sshx.Hop) error {
	switch {
	case x.identity != "":
		key, usable, err := readKey(x.identity)
		if err != nil {
			return err
		}
		if !usable {
			return x.Usage("the key %s has a passphrase, which the server cannot type\nGive one without, or add it to an SSH agent on the server's machine and use --agent", x.identity)
		}
		x.keys = []keyFile{{x.identity, key}}
		x.next()
		return nil
	case x.agent != "":
		x.req.Agent = x.agent
		return nil
	}
	var locked []string
	for _, path := range host.Keys {
		key, usable, err := readKey(path)
		switch {
		case err == nil && usable:
			x.keys = append(x.keys, keyFile{path, key})
		case err == nil:
			locked = append(locked, path)
		}
	}
	if len(x.keys) > 0 {
		x.next()
		return nil
	}
	if host.Agent != "" {
		path, err := filepath.Abs(host.Agent)
		if err != nil {
			return fmt.Errorf("find the SSH agent: %w", err)
		}
		x.req.Agent = path
		x.Progress("the server logs in with the SSH agent at %s, which has to be there whenever it connects", path)
		return nil
	}
	if len(locked) > 0 {
		return x.Usage("%s needs a passphrase, which the server cannot type\nGive another key with --identity, or an SSH agent on the server's machine with --agent", strings.Join(locked, ", "))
	}
	return x.Usage("no private key to log in with: give --identity, or --agent")
}

// maxKeyFile bounds a private key, in bytes.
const maxKeyFile = 64 << 10

// readKey reads a private key. Its text is never part of an error.
func readKey(path string) (key []byte, usable bool, err error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("read the private key: %w", err)
	case !info.Mode().IsRegular() || info.Size() > maxKeyFile:
		return nil, false, fmt.Errorf("%s is no private key: not a file of at most %d bytes", path, maxKeyFile)
	}
	if key, err = os.ReadFile(path); err != nil {
		return nil, false, fmt.Errorf("read the private key: %w", err)
	}
	_, err = ssh.ParsePrivateKey(key)
	var locked *ssh.PassphraseMissingError
	switch {
	case errors.As(err, &locked):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("%s is no private key that can be read", path)
	}
	return key, true, nil
}

// confirm settles the key that one host on the way has shown.
func (x *adding) confirm(details map[string]string) error {
	address, line, mark := details["scope"], details["host_key"], details["fingerprint"]
	hop := x.hopAt(address)
	known, err := hop.Known()
	if err != nil {
		return err
	}
	switch {
	case slices.Contains(known, line):
		x.Progress("the host key of %s is the one in your known hosts: %s", address, mark)
	case len(known) > 0 && sameKind(known, line):
		return x.Exit(1, fmt.Errorf("the host key of %s is %s, and your known hosts have another one\n"+
			"Somebody may be between you and the host, or it was reinstalled. Find out which; if it is right,\n"+
			"replace it there ('ssh-keygen -R %s') and add the marquee again", address, mark, knownName(hop)))
	case slices.Contains(x.hostKeys, mark):
	case len(x.hostKeys) > 0:
		return x.Exit(1, fmt.Errorf("the host key of %s is %s, which is not what --host-key names\n"+
			"Somebody may be between you and the host. Compare it with 'ssh-keygen -lf' on the host; each host\n"+
			"on the way has a fingerprint of its own", address, mark))
	case x.acceptNew:
		x.Progress("the host key of %s is taken as it is: %s", address, mark)
	default:
		kind, _, _ := strings.Cut(line, " ")
		question := fmt.Sprintf("The host key of %s is %s %s, which your known hosts do not have. Is it right?", address, kind, mark)
		if err := x.ask(question, "--host-key "+mark); err != nil {
			return err
		}
	}
	if len(x.hops) > 1 {
		for i := range x.req.Jumps {
			if x.req.Jumps[i].Address == hop.Address {
				x.req.Jumps[i].HostKey = line
				return nil
			}
		}
	}
	x.req.HostKey = line
	return nil
}

// hopAt is the host on the way with that address; the last one if none has it.
func (x *adding) hopAt(address string) sshx.Hop {
	for _, h := range x.hops {
		if h.Address == address {
			return h
		}
	}
	return x.hops[len(x.hops)-1]
}

func sameKind(known []string, line string) bool {
	kind, _, _ := strings.Cut(line, " ")
	return slices.ContainsFunc(known, func(k string) bool { return strings.HasPrefix(k, kind+" ") })
}

// knownName is how known_hosts files name a host.
func knownName(h sshx.Hop) string {
	host, port, err := net.SplitHostPort(h.Pinned)
	if err != nil || port == "22" {
		return or(host, h.Pinned)
	}
	return "[" + host + "]:" + port
}
