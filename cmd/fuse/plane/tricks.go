package plane

import (
	"context"
	"slices"
	_ "time/tzdata" // hosts of the server may have no time zones

	notifyroutes "github.com/fusevm/fuse/internal/api/notify"
	routes "github.com/fusevm/fuse/internal/api/playguard"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/keys"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/playguard/loop"
	"github.com/fusevm/fuse/internal/playguard/notify"
	"github.com/fusevm/fuse/internal/playguard/reach"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/trick"
	"github.com/fusevm/fuse/internal/webhooks"
)

// ends are the services of what ends by itself, and of who is told.
type ends struct {
	tricks *trick.Service
	notify *notify.Service
}

// wireEnds makes them, and puts the phase of tricks into the loop.
func wireEnds(p *Plane, l *loop.Loop, hosts *reach.Hosts, sealer records.Sealer) (err error) {
	if p.ends.tricks, err = trick.New(trick.Config{Playguard: p.playguard, Store: p.Store, Hosts: hosts, Sealer: sealer, Logger: p.log, Acting: keys.Acting}); err != nil {
		return err
	}
	l.Before = append(l.Before, p.ends.tricks.Phase())
	p.ends.notify, err = notify.New(notify.Config{
		Store: p.Store, Sealer: sealer, Logger: p.log, Poster: webhooks.NewPoster(p.settings.Events.WebhookAllowPrivate, notify.SendTime), Acting: keys.Acting,
		Told: func(channel, result string) { metrics.Told(p.metrics, channel, result) },
	})
	return err
}

// loops are those of them that run while the plane owns the fleet.
func (e ends) loops() []func(context.Context) error {
	return []func(context.Context) error{e.tricks.RunSchedules, e.notify.Run}
}

func endRoutes(p *Plane) []web.Route {
	return slices.Concat(routes.TrickRoutes(p.ends.tricks, p.keeper, p.streams), notifyroutes.Routes(p.ends.notify, p.keeper))
}
