package plane

import (
	"context"
	"time"

	routes "github.com/fusevm/fuse/internal/api/playguard"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/keys"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/playguard/branch"
	"github.com/fusevm/fuse/internal/playguard/credential"
	"github.com/fusevm/fuse/internal/playguard/githook"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/template"
	"github.com/fusevm/fuse/internal/playguard/work"
	"github.com/fusevm/fuse/internal/state"
)

// sources are the services of what playgrounds are made from.
type sources struct {
	branches  *branch.Follower
	secrets   *credential.Service
	refresher *credential.Refresher
	hooks     *githook.Service
	templates *template.Service
}

// previewsEvery is how often it is asked whether a preview is due.
const previewsEvery = 10 * time.Second

// storedDefinitions bounds the definitions of one owner, as those of ups.
const storedDefinitions = 256 << 20

// wireSources makes them, has the worker ask them, and puts their phases into the
// loop: branches first, then what registries are logged in with.
func wireSources(p *Plane, l *loop.Loop, w *work.Worker, hosts *reach.Hosts, sealer records.Sealer) {
	kickAll := func() {
		// The closure never fails, so neither does the view.
		_ = p.Store.View(func(tx *state.ReadTx) error {
			for id := range records.Marquees.All(tx) {
				l.Kick(model.MarqueeID(id))
			}
			return nil
		})
	}
	s := &p.sources
	s.branches = branch.New(branch.Config{
		Store: p.Store, Sealer: sealer, Installation: records.Installation(p.Store.FleetID()), Policy: l.Policy, Logger: p.log,
		Host: func(m records.Marquee) branch.Git { return hosts.Host(m) }, Begin: l.Begin, Kick: l.Kick,
		Followed: func(what, result string) { metrics.PlayguardFollowed(p.metrics, what, result) }, MaxStored: storedDefinitions,
	})
	s.branches.Worker = w
	w.Maker = s.branches
	w.Auth = func(tx state.Reader, row *records.Playground) ([]byte, error) {
		return credential.Logins(tx, sealer, row)
	}
	s.secrets = &credential.Service{Store: p.Store, Sealer: sealer, Kick: kickAll}
	s.refresher = &credential.Refresher{Store: p.Store, Sealer: sealer, Logger: p.log, Kick: kickAll}
	s.templates = &template.Service{Store: p.Store, Branch: s.branches, Acting: keys.Acting}
	s.hooks = &githook.Service{Store: p.Store, Sealer: sealer, Check: s.branches.Check, Seek: s.templates.Seek}
	l.Before = append(l.Before, s.branches.Phase(), credential.Phase(p.Store, w))
}

// loops are those of them that run while the plane owns the fleet.
func (s *sources) loops(p *Plane) []func(context.Context) error {
	return []func(context.Context) error{
		s.refresher.Run,
		func(ctx context.Context) error { return s.templates.Run(ctx, p.log, previewsEvery) },
	}
}

func sourceRoutes(p *Plane) []web.Route {
	return routes.SourceRoutes(routes.Sources{
		Playguard: p.playguard, Branches: p.sources.branches, Secrets: p.sources.secrets, Hooks: p.sources.hooks, Templates: p.sources.templates,
	}, p.keeper)
}
