package sshx

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fusevm/fuse/internal/playguard/observe"
)

// Error is a round trip or a connection that ended otherwise than with an exit
// status.
type Error struct {
	Ending observe.Ending
	Op     string // what was tried
	Err    error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s: %v", e.Op, e.Ending, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// EndingOf is how a failed call ended; anything that is no *Error counts as a
// cut link.
func EndingOf(err error) observe.Ending {
	var e *Error
	if errors.As(err, &e) {
		return e.Ending
	}
	return observe.EndedWithout
}

// errDeadline is the cause of one step that took too long, the others are those
// of connections that we closed.
var (
	errDeadline = errors.New("the deadline has passed")
	errSilent   = errors.New("the host has stopped answering")
	errRetired  = errors.New("the connection is being retired")
	errClosed   = errors.New("the connection was closed")
)

// handshakeEnding tells the failures of a handshake apart. The library has no
// type for refused keys, only a text.
func handshakeEnding(err error) observe.Ending {
	var key *HostKeyError
	switch {
	case errors.As(err, &key):
		return observe.EndedHostKey
	case errors.Is(err, errDeadline):
		return observe.EndedDeadline
	case strings.Contains(err.Error(), "unable to authenticate"), strings.Contains(err.Error(), "Too many authentication failures"):
		return observe.EndedAuth
	}
	return observe.EndedHandshake
}
