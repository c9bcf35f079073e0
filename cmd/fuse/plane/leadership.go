package plane

import (
	"cmp"
	"time"

	"github.com/fusevm/fuse/internal/api/leadership"
	"github.com/fusevm/fuse/internal/api/web"
)

// begun is when this process began, for a plane that stands alone.
var begun = time.Now()

// leadershipRoutes are the routes that tell who leads.
func (p *Plane) leadershipRoutes() []web.Route { return leadership.Routes(p.leadership) }

func (p *Plane) leadership() leadership.Status {
	s := leadership.Status{
		Name: p.self.Name, Address: p.self.Address, Version: p.version, FleetID: p.Store.FleetID(), Started: begun,
		Term: p.Store.Term(), Store: cmp.Or(p.settings.Store, "sqlite"), CommittedAt: p.Store.CommittedAt(),
	}
	s.Revision, s.Seq = p.Store.Head()
	s.Left, s.Lasting = p.Store.LeaseLeft()
	if p.front != nil {
		s.Started, s.Standbys = p.front.Started(), p.front.Standbys()
	}
	return s
}
