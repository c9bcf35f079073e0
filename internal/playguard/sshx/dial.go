package sshx

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// Dial connects to a host, through its jump hosts. Every step has a deadline,
// and ctx ends all of them.
func Dial(ctx context.Context, t Target, limits Timeouts) (*Conn, error) {
	limits = limits.normal()
	if err := t.check(); err != nil {
		return nil, err
	}
	way := append(append([]Target(nil), t.Jumps...), t)
	var hops []*ssh.Client
	closeAll := func() {
		for i := len(hops) - 1; i >= 0; i-- {
			hops[i].Close() //nolint:errcheck // it is given up
		}
	}
	for i, hop := range way {
		if hop.User == "" {
			hop.User = t.User
		}
		if len(hop.Keys) == 0 && hop.Agent == "" {
			hop.Keys, hop.Agent = t.Keys, t.Agent
		}
		var via *ssh.Client
		if i > 0 {
			via = hops[i-1]
		}
		client, err := connect(ctx, hop, via, limits)
		if err != nil {
			closeAll()
			return nil, err
		}
		hops = append(hops, client)
	}
	return newConn(hops, t.Address, limits), nil
}

// connect makes one hop.
func connect(ctx context.Context, t Target, via *ssh.Client, limits Timeouts) (*ssh.Client, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	callback, algorithms, err := t.hostKey()
	if err != nil {
		return nil, err
	}
	raw, err := dialHop(ctx, t.Address, via, limits.Dial)
	if err != nil {
		return nil, err
	}
	var left atomic.Int32
	auth, closeAuth, err := t.auth(limits.Handshake, &left)
	if err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	defer closeAuth()
	// The library's own timeout covers dialling only, and a connection through
	// a jump host has no deadlines: closing it is the one way to stop.
	within, cancel := context.WithTimeoutCause(ctx, limits.Handshake, errDeadline)
	defer cancel()
	stop := context.AfterFunc(within, func() { raw.Close() })
	conn, channels, requests, err := ssh.NewClientConn(raw, t.Address, &ssh.ClientConfig{
		User: t.User, Auth: auth, HostKeyCallback: callback, HostKeyAlgorithms: algorithms,
	})
	if !stop() && err == nil { // too late: it is being closed
		err = errors.Join(context.Cause(within), conn.Close())
	}
	if err != nil {
		if cause := context.Cause(within); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
		ending := handshakeEnding(err)
		if n := left.Load(); n > 0 && ending == observe.EndedAuth {
			err = fmt.Errorf("%w; %d more keys of the agent were not shown, for sshd hangs up after its sixth try: give the key itself, or an agent that holds at most %d", err, n, maxKeys)
		}
		return nil, errors.Join(&Error{Ending: ending, Op: "SSH handshake with " + t.Address, Err: err}, ignoreClosed(raw.Close()))
	}
	return ssh.NewClient(conn, channels, requests), nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func dialHop(ctx context.Context, address string, via *ssh.Client, limit time.Duration) (net.Conn, error) {
	within, cancel := context.WithTimeoutCause(ctx, limit, errDeadline)
	defer cancel()
	var raw net.Conn
	var err error
	if via != nil {
		raw, err = via.DialContext(within, "tcp", address)
	} else {
		raw, err = new(net.Dialer).DialContext(within, "tcp", address)
	}
	if err == nil {
		return raw, nil
	}
	ending := observe.EndedDial
	if within.Err() != nil {
		ending = observe.EndedDeadline
	}
	return nil, &Error{Ending: ending, Op: "connect to " + address, Err: err}
}

// maxKeys is how many keys a host is shown: sshd takes six tries unless told
// otherwise, and the first of them asks for no key at all.
const maxKeys = 5

// auth offers the keys and the agent. closeAuth ends the agent's connection; left is
// how many keys of the agent were not offered.
func (t Target) auth(limit time.Duration, left *atomic.Int32) (methods []ssh.AuthMethod, closeAuth func(), err error) {
	closeAuth = func() {}
	var signers []ssh.Signer
	for i, pem := range t.Keys {
		signer, err := ssh.ParsePrivateKey(pem)
		var locked *ssh.PassphraseMissingError
		switch {
		case errors.As(err, &locked):
			return nil, closeAuth, fleet.Errorf(fleet.CodeInvalidArgument, "private key %d for %s needs a passphrase", i+1, t.Address).
				With(fleet.DetailRemedy, "add it to an SSH agent and use that, or give a key without one")
		case err != nil: // the library's text may quote the key
			return nil, closeAuth, fleet.Errorf(fleet.CodeInvalidArgument, "private key %d for %s cannot be read", i+1, t.Address)
		}
		signers = append(signers, signer)
	}
	var held agent.ExtendedAgent
	if t.Agent != "" {
		conn, err := (&net.Dialer{Timeout: DefaultTimeout}).Dial("unix", t.Agent)
		switch {
		case err == nil:
			// An agent may be asking its person, or hang.
			if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
				return nil, closeAuth, errors.Join(fmt.Errorf("bound the SSH agent: %w", err), conn.Close())
			}
			held = agent.NewClient(conn)
			closeAuth = func() { conn.Close() }
		case len(signers) == 0:
			return nil, closeAuth, &Error{Ending: observe.EndedAuth, Op: "connect to the SSH agent", Err: err}
		}
	}
	return []ssh.AuthMethod{ssh.PublicKeysCallback(func() ([]ssh.Signer, error) {
		if held == nil {
			return signers, nil
		}
		more, err := held.Signers()
		if err != nil && len(signers) == 0 {
			return nil, fmt.Errorf("ask the SSH agent: %w", err)
		}
		shown := min(len(more), max(maxKeys-len(signers), 0))
		left.Store(int32(len(more) - shown))
		return append(signers, more[:shown]...), nil
	})}, closeAuth, nil
}
