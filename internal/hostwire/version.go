// Package hostwire is the private protocol between a control plane and the
// agent of one host: the messages and services (hostwirev1, generated from
// hostwire.proto), the mapping of errors in both directions, and how the two
// sides meet (TLS with a pinned certificate, or plain on loopback and unix
// sockets only).
package hostwire

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/fusevm/fuse/internal/fleet"
)

// WireVersion is the version of the protocol that this binary speaks.
const WireVersion = 1

// VersionHeader carries the caller's version in a call and the host's in an
// answer. ReleaseHeader carries the release of the program, for people.
const (
	VersionHeader = "Fuse-Wire-Version"
	ReleaseHeader = "Fuse-Release"
)

// ErrUnsupported says that the two sides are too far apart for what was asked:
// it is a refusal, and nothing was done.
var ErrUnsupported = errors.New("not supported between these versions")

// Peer is one side's version of the protocol, and its release if it is known.
type Peer struct {
	Wire    string
	Release string
}

// PeerOf is what headers say of who sent them.
func PeerOf(h http.Header) Peer {
	return Peer{h.Get(VersionHeader), h.Get(ReleaseHeader)}
}

// Own is this program.
func Own(release string) Peer { return Peer{strconv.Itoa(WireVersion), release} }

// Stamp writes the peer into headers.
func (p Peer) Stamp(h http.Header) {
	h.Set(VersionHeader, p.Wire)
	if p.Release != "" {
		h.Set(ReleaseHeader, p.Release)
	}
}

func (p Peer) String() string {
	return fmt.Sprintf("release %.40q, wire version %.16q", cmp.Or(p.Release, "unknown"), cmp.Or(p.Wire, "none"))
}

// Meet is the version that the two sides speak, the lower one, or a refusal
// that names both if they are more than one apart.
func Meet(own, other Peer) (int, error) {
	v, err := strconv.Atoi(other.Wire)
	if err == nil && v >= WireVersion-1 && v <= WireVersion+1 {
		return min(v, WireVersion), nil
	}
	return 0, fleet.Wrap(fleet.CodeUnimplemented, ErrUnsupported, fmt.Sprintf("the other side (%s) and this one (%s) do not understand each other", other, own)).
		With(fleet.DetailLimit, fmt.Sprintf("wire versions %d to %d", WireVersion-1, WireVersion+1)).
		With(fleet.DetailReason, "wire_version").
		With(fleet.DetailRemedy, "bring server and host agent to releases at most one apart")
}

// Unsupported is the refusal of a call that the other side does not know.
func Unsupported(call string, own, other Peer) error {
	return fleet.Wrap(fleet.CodeUnimplemented, ErrUnsupported, fmt.Sprintf("the host agent (%s) does not know %s, which this server (%s) asks for", other, call, own)).
		With(fleet.DetailReason, "wire_version").
		With(fleet.DetailRemedy, "bring the host agent to the server's release")
}

// Limits of one message, in bytes.
const (
	// MaxControlBytes bounds every request but WriteFiles and Exec.
	MaxControlBytes = 1 << 20
	// MaxFilesBytes bounds a WriteFiles request.
	MaxFilesBytes = 16 << 20
	// MaxListBytes bounds an answer as its caller reads it.
	MaxListBytes = 64 << 20
	// MaxChunk bounds the payload of one stream message of an exec.
	MaxChunk = 64 << 10
)
