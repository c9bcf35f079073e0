package provider

import "github.com/fusevm/fuse/internal/guestwire"

// GuestReacher is implemented by environments whose guest agent can be asked
// directly, through its host: for processes and files. Their errors are
// fleet.Errors, as those of Environment.
type GuestReacher interface {
	Guest() guestwire.Surface
}
