package main

import (
	routes "github.com/fusevm/fuse/internal/api/deadletters"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/deadletters"
)

func (p *plane) deadLetterRoutes() []web.Route {
	return routes.Routes(deadletters.New(p.store, p.log), p.keeper)
}
