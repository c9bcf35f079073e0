package plane

import (
	"slices"

	"github.com/fusevm/fuse/internal/api/feed"
	"github.com/fusevm/fuse/internal/api/web"
	hookroutes "github.com/fusevm/fuse/internal/api/webhooks"
	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/webhooks"
)

// maxStreams bounds the event streams of a server at a time.
const maxStreams = 10_000

// wireWebhooks makes the service of webhooks; its Run is one of the loops.
func wireWebhooks(p *Plane, sealer webhooks.Sealer) (err error) {
	p.webhooks, err = webhooks.New(webhooks.Config{
		Store: p.Store, Sealer: sealer, Logger: p.log, AllowPrivate: p.settings.Events.WebhookAllowPrivate, Tried: p.metrics.WebhookTried,
	})
	if err != nil {
		return err
	}
	p.metrics.WatchWebhooks(func() metrics.Webhooks {
		n, oldest := p.webhooks.Pending()
		return metrics.Webhooks{Pending: n, Oldest: oldest}
	})
	return nil
}

// feedRoutes are the routes of events, histories and webhooks.
func feedRoutes(p *Plane) []web.Route {
	return slices.Concat(feed.Routes(feed.Config{
		Store: p.Store, Streams: p.streams, Metrics: p.metrics, Sight: sight(p.Hosts, p.loop),
		MaxRuntime: p.settings.Reconcile.MaxRuntime, IdleTimeout: p.settings.Reconcile.IdleTimeout,
	}), hookroutes.Routes(p.webhooks, p.keeper))
}

// sight tells what is known of a host, as far as it explains an environment.
func sight(hs *hosts.Service, loop *converge.Loop) func(hostID string) events.Sight {
	return func(hostID string) events.Sight {
		s := hs.Sighting(hostID)
		out := events.Sight{LastSeen: s.LastSeen, MissedSince: s.MissedSince, Reason: s.Reason}
		if now, err := loop.Pauses(); err == nil { // else what follows fails too
			by, _ := now.At(hostID)
			out.PausedSince = by.At
		}
		return out
	}
}
