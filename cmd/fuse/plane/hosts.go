package plane

import (
	"context"

	"github.com/fusevm/fuse/internal/api/hostlife"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/evacuation"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/join"
)

// wireHostLife makes what empties hosts and takes in those that join.
func wireHostLife(p *Plane) (err error) {
	if p.drains, err = evacuation.New(evacuation.Config{Store: p.Store, Lives: p.life, Logger: p.log}); err != nil {
		return err
	}
	p.joins, err = join.New(p.Store, func(ctx context.Context, r join.Registration) ([]string, error) {
		h, err := p.Hosts.Register(ctx, hosts.RegisterRequest{
			ID: r.ID, Owner: r.Owner, Actor: r.Actor, Evidence: r.Evidence, URL: r.URL, Token: r.Token, CertSHA256: r.CertSHA256,
			Region: r.Region, Labels: r.Labels, Pinned: true,
		})
		return h.Warnings, err
	}, p.log)
	return err
}

// lost ends the work in flight on lives that ended without their host.
func lost(p *Plane) func(uids []string) {
	return func(uids []string) {
		for _, uid := range uids {
			p.life.Interrupt(uid)
		}
	}
}

func hostLife(p *Plane) hostlife.Config {
	return hostlife.Config{Hosts: p.Hosts, Drains: p.drains, Joins: p.joins, Keeper: p.keeper}
}

func hostRoutes(p *Plane) []web.Route { return hostlife.Routes(hostLife(p)) }
