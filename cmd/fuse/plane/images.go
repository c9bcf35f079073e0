package plane

import (
	"context"
	"math"

	imageroutes "github.com/fusevm/fuse/internal/api/images"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/image/oci"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/images"
	"github.com/fusevm/fuse/internal/provider"
)

// wireImages makes what knows which hosts hold which images.
func wireImages(p *Plane) (err error) {
	p.images, err = images.New(images.Config{Hosts: imageHosts{p.Hosts}, Registry: registries{}, Logger: p.log})
	return err
}

func imageRoutes(p *Plane) []web.Route { return imageroutes.Routes(p.images) }

type imageHosts struct{ *hosts.Service }

// Active are the hosts that take work.
func (h imageHosts) Active() ([]string, error) {
	list, _, err := h.List("", math.MaxInt)
	var ids []string
	for _, host := range list {
		if host.State == fleet.HostActive {
			ids = append(ids, host.ID)
		}
	}
	return ids, err
}

// registries asks registries with the login that this process's docker
// configuration has for them.
type registries struct{}

func (registries) IsReference(image string) bool { return oci.IsReference(image) }

func (registries) Pin(ctx context.Context, image string) (string, error) {
	ref, err := oci.Parse(image)
	if err != nil {
		return "", err
	}
	digest, err := oci.Resolve(ctx, oci.Config{}, ref)
	if err != nil {
		return "", err
	}
	return ref.Pinned(digest), nil
}

func (registries) Login(image string) provider.RegistryLogin {
	ref, err := oci.Parse(image)
	if err != nil {
		return provider.RegistryLogin{}
	}
	return provider.RegistryLogin(oci.Login(ref))
}
