package images

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/fusevm/fuse/internal/provider"
)

// UnderWay is a pull of one host that has not ended.
type UnderWay struct {
	Image, HostID string
	provider.PullProgress
}

// UnderWay are the pulls that this server has asked for and that have not ended,
// those of creates too.
func (s *Service) UnderWay() []UnderWay {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.pulling), func(a, b UnderWay) int {
		return cmp.Or(cmp.Compare(a.HostID, b.HostID), cmp.Compare(a.Image, b.Image))
	})
}

// pullAt has a host pull an image and keeps how far it is meanwhile.
func (s *Service) pullAt(ctx context.Context, im provider.Imager, hostID, image string, tell func(provider.PullProgress)) (provider.HostImage, error) {
	s.mu.Lock()
	s.pulls++
	key := s.pulls
	s.pulling[key] = UnderWay{Image: image, HostID: hostID, PullProgress: provider.PullProgress{Phase: "pulling image"}}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.pulling, key)
	}()
	return im.PullImage(ctx, image, s.cfg.Registry.Login(image), func(p provider.PullProgress) {
		s.mu.Lock()
		s.pulling[key] = UnderWay{Image: image, HostID: hostID, PullProgress: p}
		s.mu.Unlock()
		if tell != nil {
			tell(p)
		}
	})
}
