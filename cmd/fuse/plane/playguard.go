package plane

import (
	"context"

	"github.com/fusevm/fuse/internal/api"
	routes "github.com/fusevm/fuse/internal/api/playguard"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/state"
)

func (p *Plane) playguardRoutes() []web.Route {
	if p.playguard == nil {
		p.playguard = &service.Service{}
	}
	return routes.Routes(p.playguard, p.keeper, p.streams)
}

// owners find whose the objects of other areas are.
func (p *Plane) owners() map[auth.Object]api.OwnerOf {
	return map[auth.Object]api.OwnerOf{
		auth.Playground: func(ctx context.Context, _ *state.ReadTx, id string) (string, bool) {
			return p.playguard.Owner(ctx, id)
		},
		auth.Schedule: func(ctx context.Context, _ *state.ReadTx, id string) (string, bool) {
			s, err := p.ends.tricks.Schedule(ctx, id)
			return s.Owner, err == nil
		},
		auth.Route: func(ctx context.Context, _ *state.ReadTx, id string) (string, bool) {
			r, err := p.ends.notify.Get(ctx, id)
			return r.Owner, err == nil
		},
	}
}
