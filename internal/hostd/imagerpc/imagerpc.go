// Package imagerpc serves the images of a host to its control plane.
package imagerpc

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/fence"
	"github.com/fusevm/fuse/internal/hostd/image"
	"github.com/fusevm/fuse/internal/hostd/image/oci"
	hostwirev1 "github.com/fusevm/fuse/internal/hostwire/hostwirev1"
	"github.com/fusevm/fuse/internal/hostwire/hostwirev1/hostwirev1connect"
)

// Store is what is served: image.Store.
type Store interface {
	Entries() ([]image.Entry, error)
	Inspect(name string) (image.Entry, error)
	Pull(ctx context.Context, ref string, o image.PullOptions) (image.Image, error)
	Remove(ctx context.Context, name string, force bool) error
	Prune(ctx context.Context, o image.PruneOptions) (image.Pruned, error)
}

// Handler serves the images of store. admit checks the fence of every call
// that changes something.
func Handler(store Store, admit func(fence.Fence) error, opts ...connect.HandlerOption) (string, http.Handler) {
	return hostwirev1connect.NewImagesHandler(service{store, admit}, opts...)
}

type service struct {
	store Store
	admit func(fence.Fence) error
}

func (s service) check(f *hostwirev1.Fence) error {
	return s.admit(fence.Fence{
		FleetID: f.GetFleetId(), Term: f.GetTerm(), ClaimToken: f.GetClaimToken(),
		Fingerprint: f.GetStoreFingerprint(), Revision: f.GetRevision(), Volatile: f.GetVolatile(),
	})
}

func (s service) ListImages(context.Context, *connect.Request[hostwirev1.ListImagesRequest]) (*connect.Response[hostwirev1.ListImagesResponse], error) {
	list, err := s.store.Entries()
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.ListImagesResponse{Images: toWire(list)}), nil
}

func toWire(list []image.Entry) []*hostwirev1.HostImage {
	out := make([]*hostwirev1.HostImage, len(list))
	for i, e := range list {
		out[i] = one(e)
	}
	return out
}

func one(e image.Entry) *hostwirev1.HostImage {
	return &hostwirev1.HostImage{
		Name: e.Name, Digest: e.Digest, Resolved: e.Resolved, Arch: e.Arch, Size: e.Size, DiskBytes: e.Disk,
		InUse: int64(e.InUse), Origin: e.Origin, UsedAtUnixMs: e.UsedAt.UnixMilli(),
	}
}

func (s service) PullImage(ctx context.Context, req *connect.Request[hostwirev1.PullImageRequest], out *connect.ServerStream[hostwirev1.PullImageResponse]) error {
	m := req.Msg
	if err := s.check(m.GetFence()); err != nil {
		return err
	}
	l := m.GetLogin()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex // guards the sending of one message, which a stream allows no two of
	img, err := s.store.Pull(ctx, m.GetImage(), image.PullOptions{
		Auth: oci.Auth{Username: l.GetUsername(), Password: l.GetPassword(), IdentityToken: l.GetIdentityToken(), RegistryToken: l.GetRegistryToken()},
		Progress: func(p oci.Progress) {
			mu.Lock()
			defer mu.Unlock()
			err := out.Send(&hostwirev1.PullImageResponse{Kind: &hostwirev1.PullImageResponse_Progress{Progress: &hostwirev1.PullProgress{
				Phase: p.Phase, DoneBytes: p.Done, TotalBytes: p.Total, BytesPerSecond: int64(p.Rate),
			}}})
			if err != nil {
				cancel()
			}
		},
	})
	if err != nil {
		return typed(err)
	}
	e, err := s.store.Inspect(img.Digest)
	if err != nil {
		return err
	}
	return out.Send(&hostwirev1.PullImageResponse{Kind: &hostwirev1.PullImageResponse_Image{Image: one(e)}})
}

// typed gives an error without a code one that says more than "internal".
func typed(err error) error {
	if errors.As(err, new(*fleet.Error)) || errors.Is(err, context.Canceled) {
		return err
	}
	return fleet.Wrap(fleet.CodeInternal, err, "the image could not be made on this host")
}

func (s service) RemoveImage(ctx context.Context, req *connect.Request[hostwirev1.RemoveImageRequest]) (*connect.Response[hostwirev1.RemoveImageResponse], error) {
	if err := s.check(req.Msg.GetFence()); err != nil {
		return nil, err
	}
	if strings.TrimSpace(req.Msg.GetImage()) == "" {
		return nil, fleet.Errorf(fleet.CodeInvalidArgument, "no image is named")
	}
	if err := s.store.Remove(ctx, req.Msg.GetImage(), req.Msg.GetForce()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.RemoveImageResponse{}), nil
}

func (s service) PruneImages(ctx context.Context, req *connect.Request[hostwirev1.PruneImagesRequest]) (*connect.Response[hostwirev1.PruneImagesResponse], error) {
	if err := s.check(req.Msg.GetFence()); err != nil {
		return nil, err
	}
	gone, err := s.store.Prune(ctx, image.PruneOptions{
		Unused: time.Duration(req.Msg.GetUnusedMs()) * time.Millisecond, MaxBytes: req.Msg.GetMaxBytes(),
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&hostwirev1.PruneImagesResponse{Images: toWire(gone.Images), FreedBytes: gone.Freed}), nil
}
