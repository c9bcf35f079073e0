// Package hostwire is the private protocol between a control plane and the
// agent of one host: the messages and services (hostwirev1, generated from
// hostwire.proto), the mapping of errors in both directions, and how the two
// sides meet (TLS with a pinned certificate, or plain on loopback and unix
// sockets only).
package hostwire

import (
	"strconv"

	"github.com/fusevm/fuse/internal/fleet"
)

// WireVersion is the version of the protocol that this binary speaks.
const WireVersion = 1

// VersionHeader carries the caller's version in a call and the host's in an
// answer.
const VersionHeader = "Fuse-Wire-Version"

// CheckVersion refuses a peer that is more than one version away.
func CheckVersion(header string) error {
	v, err := strconv.Atoi(header)
	if err == nil && v >= WireVersion-1 && v <= WireVersion+1 {
		return nil
	}
	return fleet.Errorf(fleet.CodeUnimplemented, "wire version %.16q is not understood", header).
		With(fleet.DetailLimit, strconv.Itoa(WireVersion-1)+" to "+strconv.Itoa(WireVersion+1)).
		With(fleet.DetailReason, "wire_version").
		With(fleet.DetailRemedy, "bring server and host agent to releases at most one apart")
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
