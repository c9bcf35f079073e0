// Package guestwire is what a host agent and the guest agent of one VM share:
// the boot configuration that the initramfs carries, and the protocol that
// guestd serves and Client speaks.
package guestwire

//go:generate ../../tools/proto/generate

import (
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// WireVersion is the version of the protocol this build speaks. The protocol
// only grows: a peer with a lower version lacks the later additions.
const WireVersion = 5

// Ports of a guest agent. LinkPort serves the protocol to the host in clear
// text on the two-party link; AgentPort is the published one, with TLS.
const (
	LinkPort  = 9551
	AgentPort = fleet.AgentPort
)

// Limits of the protocol, in bytes.
const (
	MaxChunk     = 64 << 10 // of one piece of a command's input or output
	MaxFileChunk = 1 << 20  // of one piece of a file
	MaxMessage   = 2 << 20  // of any one message
)

// Limits in time of a connection. The host pings a quiet guest, which under
// emulation on a loaded host may be slow to answer.
const (
	DialTimeout = 5 * time.Second
	PingAfter   = 15 * time.Second
	PingTimeout = 15 * time.Second
)
