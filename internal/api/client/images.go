package client

import (
	"context"
	"time"

	"github.com/fusevm/fuse/internal/api/gen"
)

// Images are the calls about the images that hosts keep.
type Images struct{ API *API }

// List tells which hosts hold what.
func (i Images) List(ctx context.Context) (list gen.ImageList, err error) {
	resp, err := i.API.raw.ListImages(ctx)
	return list, decode(resp, err, &list)
}

// Pull has hosts, all active ones if none are named, pull an image.
func (i Images) Pull(ctx context.Context, image string, hostIDs []string) (out gen.ImageOutcomes, err error) {
	resp, err := i.API.raw.PullImage(ctx, gen.PullImage{Image: image, HostIDs: hostIDs})
	return out, decode(resp, err, &out)
}

// UnderWay are the pulls that have not ended.
func (i Images) UnderWay(ctx context.Context) (list gen.ImagePulls, err error) {
	resp, err := i.API.raw.ListImagePulls(ctx)
	return list, decode(resp, err, &list)
}

// Remove removes an image from hosts.
func (i Images) Remove(ctx context.Context, image string, hostIDs []string, force bool) (out gen.ImageOutcomes, err error) {
	resp, err := i.API.raw.RemoveImage(ctx, gen.RemoveImage{Image: image, HostIDs: hostIDs, Force: force})
	return out, decode(resp, err, &out)
}

// Prune removes from hosts what nothing uses.
func (i Images) Prune(ctx context.Context, hostIDs []string, unused time.Duration, maxBytes int64) (out gen.ImageOutcomes, err error) {
	resp, err := i.API.raw.PruneImages(ctx, gen.PruneImages{HostIDs: hostIDs, UnusedSeconds: int64(unused / time.Second), MaxBytes: maxBytes})
	return out, decode(resp, err, &out)
}
