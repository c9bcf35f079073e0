package remote

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/provider"
)

var _ provider.Imager = (*Provider)(nil)

// Images lists what the host keeps.
func (p *Provider) Images(ctx context.Context) ([]provider.HostImage, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.CallTimeout)
	defer cancel()
	resp, err := p.images.ListImages(ctx, connect.NewRequest(&hostwirev1.ListImagesRequest{}))
	if err != nil {
		return nil, imageError(ctx, err)
	}
	return imagesFromWire(resp.Msg.GetImages()), nil
}

func imagesFromWire(list []*hostwirev1.HostImage) []provider.HostImage {
	out := make([]provider.HostImage, len(list))
	for i, m := range list {
		out[i] = imageFromWire(m)
	}
	return out
}

func imageFromWire(m *hostwirev1.HostImage) provider.HostImage {
	return provider.HostImage{
		Name: m.GetName(), Digest: m.GetDigest(), Resolved: m.GetResolved(), Arch: m.GetArch(), Size: m.GetSize(),
		DiskBytes: m.GetDiskBytes(), InUse: int(m.GetInUse()), Origin: m.GetOrigin(), UsedAt: time.UnixMilli(m.GetUsedAtUnixMs()).UTC(),
	}
}

// imageError is callError; a host that does not know the service says so.
func imageError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if connect.CodeOf(err) == connect.CodeUnimplemented {
		return fleet.Wrap(fleet.CodeUnimplemented, err, "this host's agent keeps no images that can be managed").
			With(fleet.DetailRemedy, "update the host agent")
	}
	return callError(ctx, err)
}

// PullImage makes sure that the host has an image; see provider.Imager. It
// has no limit in time but the caller's.
func (p *Provider) PullImage(ctx context.Context, ref string, login provider.RegistryLogin, progress func(provider.PullProgress)) (provider.HostImage, error) {
	var out provider.HostImage
	err := p.change(ctx, func(f *hostwirev1.Fence) (err error) {
		out, err = p.pullImage(ctx, &hostwirev1.PullImageRequest{
			Fence: f, Image: ref, Login: &hostwirev1.RegistryLogin{
				Username: login.Username, Password: login.Password, IdentityToken: login.IdentityToken, RegistryToken: login.RegistryToken,
			},
		}, progress)
		return err
	})
	return out, err
}

func (p *Provider) pullImage(ctx context.Context, req *hostwirev1.PullImageRequest, progress func(provider.PullProgress)) (provider.HostImage, error) {
	stream, err := p.images.PullImage(ctx, connect.NewRequest(req))
	if err != nil {
		return provider.HostImage{}, imageError(ctx, err)
	}
	defer func() { _ = stream.Close() }() // answered or given up by then
	for stream.Receive() {
		switch m := stream.Msg(); {
		case m.GetImage() != nil:
			return imageFromWire(m.GetImage()), nil
		case m.GetProgress() != nil && progress != nil:
			w := m.GetProgress()
			progress(provider.PullProgress{Phase: w.GetPhase(), Done: w.GetDoneBytes(), Total: w.GetTotalBytes(), Rate: w.GetBytesPerSecond()})
		}
	}
	err = stream.Err()
	if err == nil {
		err = errors.New("the stream ended without a result")
	}
	return provider.HostImage{}, imageError(ctx, err)
}

// RemoveImage removes an image from the host.
func (p *Provider) RemoveImage(ctx context.Context, name string, force bool) error {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.CallTimeout)
	defer cancel()
	return p.change(ctx, func(f *hostwirev1.Fence) error {
		_, err := p.images.RemoveImage(ctx, connect.NewRequest(&hostwirev1.RemoveImageRequest{Fence: f, Image: name, Force: force}))
		return imageError(ctx, err)
	})
}

// PruneImages removes what nothing uses; see provider.Imager.
func (p *Provider) PruneImages(ctx context.Context, unused time.Duration, maxBytes int64) (removed []provider.HostImage, freed int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.ChangeTimeout)
	defer cancel()
	err = p.change(ctx, func(f *hostwirev1.Fence) error {
		resp, err := p.images.PruneImages(ctx, connect.NewRequest(&hostwirev1.PruneImagesRequest{
			Fence: f, UnusedMs: unused.Milliseconds(), MaxBytes: maxBytes,
		}))
		if err != nil {
			return imageError(ctx, err)
		}
		removed, freed = imagesFromWire(resp.Msg.GetImages()), resp.Msg.GetFreedBytes()
		return nil
	})
	return removed, freed, err
}
