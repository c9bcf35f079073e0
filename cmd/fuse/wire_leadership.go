package main

import (
	"cmp"
	"time"

	"github.com/fusevm/fuse/internal/api/leadership"
	"github.com/fusevm/fuse/internal/api/web"
)

// begun is when this process began, for a plane that stands alone.
var begun = time.Now()

// leadershipRoutes are the routes that tell who leads.
func (p *plane) leadershipRoutes() []web.Route { return leadership.Routes(p.leadership) }

func (p *plane) leadership() leadership.Status {
	s := leadership.Status{
		Name: p.self.Name, Address: p.self.Address, Version: version, FleetID: p.store.FleetID(), Started: begun,
		Term: p.store.Term(), Store: cmp.Or(p.settings.Store, "sqlite"), CommittedAt: p.store.CommittedAt(),
	}
	s.Revision, s.Seq = p.store.Head()
	s.Left, s.Lasting = p.store.LeaseLeft()
	if p.front != nil {
		s.Started, s.Standbys = p.front.Started(), p.front.Standbys()
	}
	return s
}
