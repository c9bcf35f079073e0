package provider

import (
	"context"
	"time"
)

// HostImage is an image that a host keeps.
type HostImage struct {
	// Name is the host's name for it, or the reference that was pulled.
	Name   string
	Digest string
	// Resolved is the digest of the index that it was chosen from, if any.
	Resolved  string
	Arch      string
	Size      int64 // of its file system, holes included
	DiskBytes int64
	InUse     int // disks of VMs and snapshots that are based on it
	Origin    string
	UsedAt    time.Time
}

// RegistryLogin is how a host logs in to a registry. The zero value leaves it
// to the host's own docker configuration.
type RegistryLogin struct {
	Username, Password, IdentityToken, RegistryToken string
}

// PullProgress is how far a pull is, in bytes; Total is zero where it is not
// known.
type PullProgress struct {
	Phase       string
	Done, Total int64
	Rate        int64 // bytes a second
}

// Imager is implemented by providers whose host keeps images that can be
// managed. A host that cannot answers fleet.CodeUnimplemented.
type Imager interface {
	Images(ctx context.Context) ([]HostImage, error)
	// PullImage makes sure that the host has the image of a reference. The work
	// ends with ctx; progress may be nil.
	PullImage(ctx context.Context, ref string, login RegistryLogin, progress func(PullProgress)) (HostImage, error)
	RemoveImage(ctx context.Context, name string, force bool) error
	// PruneImages removes pulled images that nothing uses and that were not used
	// for so long, until those left take no more than maxBytes (zero: all of them).
	PruneImages(ctx context.Context, unused time.Duration, maxBytes int64) (removed []HostImage, freed int64, err error)
}
