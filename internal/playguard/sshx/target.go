package sshx

import (
	"crypto/subtle"
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/fusevm/fuse/internal/fleet"
)

// Target says how to reach one host.
type Target struct {
	Address string // host:port
	User    string
	// HostKey is the pinned key in authorized_keys form. Without one nothing
	// is accepted, and the error carries the key that was shown.
	HostKey string
	// Keys are private keys in PEM form; Agent is the socket of an SSH agent,
	// empty for none. Keys are tried first.
	Keys  [][]byte
	Agent string
	// Jumps are the hosts to go through, nearest first; each has a pinned key
	// of its own.
	Jumps []Target
}

// Timeouts bound what can block. Zero fields take the defaults.
type Timeouts struct {
	Dial      time.Duration // one TCP connection: 10 s
	Handshake time.Duration // one SSH handshake: 10 s
	// Session is opening a session (10 s). One that is late fails alone; one that is
	// as late as silence may last leaves the connection to what goes on over it.
	Session time.Duration
	// KeepAlive is how often life is asked for (15 s); a host that has not
	// answered for three times as long is cut off.
	KeepAlive time.Duration
}

// Defaults of Timeouts. The keepalive is this slow because hosts under load
// answer late: a stall of 40 s costs nothing.
const (
	DefaultTimeout   = 10 * time.Second
	DefaultKeepAlive = 15 * time.Second
	keepAliveMisses  = 3
)

func (t Timeouts) normal() Timeouts {
	for _, d := range []*time.Duration{&t.Dial, &t.Handshake, &t.Session} {
		if *d <= 0 {
			*d = DefaultTimeout
		}
	}
	if t.KeepAlive <= 0 {
		t.KeepAlive = DefaultKeepAlive
	}
	return t
}

// maxJumps bounds the way to a host.
const maxJumps = 4

func (t Target) check() error {
	if _, port, err := net.SplitHostPort(t.Address); err != nil || port == "" {
		return fleet.Errorf(fleet.CodeInvalidArgument, "SSH address %.100q: want host:port", t.Address)
	}
	if t.User == "" || strings.ContainsAny(t.User, " \t\r\n\x00") {
		return fleet.Errorf(fleet.CodeInvalidArgument, "SSH user %.40q: want a name without spaces", t.User)
	}
	if len(t.Jumps) > maxJumps {
		return fleet.Errorf(fleet.CodeInvalidArgument, "%d jump hosts on the way to %s", len(t.Jumps), t.Address).
			With(fleet.DetailLimit, fmt.Sprint(maxJumps)).With(fleet.DetailRemedy, "name fewer hosts in between")
	}
	if len(t.Keys) == 0 && t.Agent == "" {
		return fleet.Errorf(fleet.CodeInvalidArgument, "no private key and no SSH agent for %s", t.Address).
			With(fleet.DetailRemedy, "name a key file, or start an agent and set SSH_AUTH_SOCK")
	}
	return nil
}

// HostKeyError is a host that did not show the pinned key.
type HostKeyError struct {
	Address     string
	Pinned      string // empty: none is pinned
	Shown       string // in authorized_keys form
	Fingerprint string // of the shown key, as ssh prints it
}

func (e *HostKeyError) Error() string {
	if e.Pinned == "" {
		return fmt.Sprintf("%s shows host key %s and none is pinned", e.Address, e.Fingerprint)
	}
	return fmt.Sprintf("%s shows host key %s, which is not the pinned one", e.Address, e.Fingerprint)
}

// hostKey compares what a host shows with the pin.
func (t Target) hostKey() (ssh.HostKeyCallback, []string, error) {
	var pinned ssh.PublicKey
	if t.HostKey != "" {
		var err error
		if pinned, _, _, _, err = ssh.ParseAuthorizedKey([]byte(t.HostKey)); err != nil {
			return nil, nil, fleet.Errorf(fleet.CodeInvalidArgument, "pinned host key of %s: want one line such as 'ssh-ed25519 AAAA…'", t.Address)
		}
	}
	check := func(_ string, _ net.Addr, shown ssh.PublicKey) error {
		if pinned != nil && subtle.ConstantTimeCompare(pinned.Marshal(), shown.Marshal()) == 1 {
			return nil
		}
		return &HostKeyError{
			Address: t.Address, Pinned: t.HostKey, Fingerprint: ssh.FingerprintSHA256(shown),
			Shown: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(shown))),
		}
	}
	return check, algorithms(pinned), nil
}

// algorithms makes a host show the kind of key that is pinned, not whichever
// it likes best.
func algorithms(pinned ssh.PublicKey) []string {
	if pinned == nil {
		return nil
	}
	if pinned.Type() == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{pinned.Type()}
}
