package plane

import (
	"context"
	"slices"

	"github.com/fusevm/fuse/cmd/fuse/figures"
	"github.com/fusevm/fuse/internal/api"
	"github.com/fusevm/fuse/internal/api/hostlife"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/state"
)

// wireEdges makes what calls the services: the loop and the API.
func (p *Plane) wireEdges() (err error) {
	p.keeper = idempotency.New(p.Store)
	if err := p.wireLoop(); err != nil {
		return err
	}
	gate := p.wireAuth()
	p.streams = web.NewStreams(maxStreams)
	p.metrics.WatchFleet(p.figures.Fleet)
	p.metrics.WatchLease(p.figures.Lease)
	p.metrics.WatchDisk(figures.Disk(p.settings.DataDir))
	p.api, err = api.New(api.Config{
		Store: p.Store, Environments: p.life, Awaiter: p.life, Guests: p.guests, Hosts: p.Hosts, HostActions: hostlife.Actions(hostLife(p)), Health: p.loop.Health, Keeper: p.keeper,
		Gate: gate, Metrics: p.metrics, Tracer: p.tracer, Logger: p.log, Version: p.version, Leads: p.leads,
		Ready: []api.Check{
			{Name: "state_store", Run: p.Store.Ready},
			{Name: "fleet", Run: p.fleetReady, Note: p.pausedNote},
		},
		MetricsHandler: p.metrics.Handler(), MetricsOpen: p.settings.Loopback(),
		Record: func(ctx context.Context, ev fleet.Event) error {
			_, err := p.Store.Update(ctx, func(tx *state.Tx) error { tx.Emit(ev); return nil })
			return err
		},
		WriteTimeout: p.settings.WriteTimeout, Rotator: p.rotation, Forker: p.snapshots, Pauser: p.pausing, Amender: p.amender, Streams: p.streams,
		Extra:  slices.Concat(p.keyRoutes(), p.deadLetterRoutes(), p.fencingRoutes(), hostRoutes(p), p.reconcileRoutes(), p.leadershipRoutes(), placingRoutes(p), imageRoutes(p), usageRoutes(p), p.playguardRoutes(), endRoutes(p), sourceRoutes(p), p.orphanRoutes(), guestRoutes(p), snapshotRoutes(p), feedRoutes(p)),
		Owners: p.owners(),
	})
	return err
}

// loops is what runs while the plane owns the fleet; each returns when ctx ends.
func (p *Plane) loops() []func(ctx context.Context) error {
	return append([]func(context.Context) error{p.watchStore, p.loop.Run, p.Hosts.Run, p.drains.Run, p.api.Run, p.keys.Run, p.rotation.Run, p.snapshots.Run, p.pausing.Run, p.images.Run, p.usage.Run, p.webhooks.Run, p.runPlayguard}, append(p.ends.loops(), p.sources.loops(p)...)...)
}

// leads returns why this process does not own the fleet any more.
func (p *Plane) leads() error {
	_, _, _, _, err := p.Store.Fence()
	return err
}
