package plane

import (
	routes "github.com/fusevm/fuse/internal/api/deadletters"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/deadletters"
)

func (p *Plane) deadLetterRoutes() []web.Route {
	return routes.Routes(deadletters.New(p.Store, p.log), p.keeper)
}
