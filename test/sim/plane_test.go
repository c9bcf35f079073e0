package sim

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"github.com/fusevm/fuse/internal/admission"
	"github.com/fusevm/fuse/internal/api"
	"github.com/fusevm/fuse/internal/api/feed"
	"github.com/fusevm/fuse/internal/api/placing"
	snapshotroutes "github.com/fusevm/fuse/internal/api/snapshots"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/events"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/lifecycle/uploads"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/pausing"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/remote"
	"github.com/fusevm/fuse/internal/quota"
	"github.com/fusevm/fuse/internal/reattach"
	"github.com/fusevm/fuse/internal/snapshots"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// maxStreams bounds the event streams of a simulated server.
const maxStreams = 1000

const apiToken = "a-token-for-simulated-clients"

// plane is the control plane of one process, wired as cmd/fuse wires it.
type plane struct {
	store *state.Store
	hosts *hosts.Service
	life  *lifecycle.Service
	loop  *converge.Loop
	api   *api.Server
	// In runs with snapshots.
	snaps  *snapshots.Service
	pauses *pausing.Service
}

// newPlane wires the services to a store that leads.
func (w *world) newPlane(p *process, store *state.Store) (*plane, error) {
	pl := &plane{store: store}
	leads := func() error {
		_, _, _, _, err := store.Fence()
		return err
	}
	var err error
	if pl.hosts, err = hosts.New(hosts.Config{
		Store: store, Sealer: w.sealer, Logger: p.log,
		NewProvider: func(h fleet.Host, token string) (provider.Provider, error) {
			made, err := remote.New(remote.Config{
				HostID: h.ID, URL: h.URL, Token: token, Fencer: fencer{store}, RegistryID: h.Facts.RegistryID, MachineID: h.Facts.MachineID,
				Guard: leads,
				Wrap:  func(http.RoundTripper) http.RoundTripper { return &wire{w: w, p: p, host: h.ID} },
			})
			if err != nil || w.broken.provider == nil {
				return made, err
			}
			return w.broken.provider(made), nil
		},
	}); err != nil {
		return nil, err
	}
	keeper, book := idempotency.New(store), quota.New(quota.Config{Store: store, Logger: p.log})
	desk := admission.New(admission.Config{Unreachable: pl.hosts.Unreachable, Quotas: book})
	if pl.life, err = lifecycle.New(lifecycle.Config{
		Store: store, Providers: pl.hosts, Sealer: w.sealer, Logger: p.log, Admission: desk,
		Defaults: lifecycle.Defaults{Image: "minimal"}, Seed: seedOf,
	}); err != nil {
		return nil, err
	}
	back, err := reattach.New(reattach.Config{
		Store: store, Providers: pl.hosts, Sealer: w.sealer, Drains: pl.life, Logger: p.log,
		TokenKind: lifecycle.SealKindVMToken, BootKind: lifecycle.SealKindVMBoot, Secrets: uploads.GuestSecrets,
	})
	if err != nil {
		return nil, err
	}
	guests, err := guestops.New(guestops.Config{Store: store, Providers: pl.hosts})
	if err != nil {
		return nil, err
	}
	if err := w.wireSnapshots(pl, p.log, desk); err != nil {
		return nil, err
	}
	looker := converge.Looker(pl.hosts)
	if w.broken.looker != nil {
		looker = w.broken.looker(looker)
	}
	loop := converge.Config{
		Store: store, Looker: looker, Destroyer: pl.life, OrphanKiller: orphans{pl.hosts}, Reattacher: back,
		Logger: p.log, Events: store, Wall: w.wall,
		Use: func(uid string) converge.Use {
			a, _ := guests.Activity(uid)
			return converge.Use{Last: a.Last, Open: a.Open}
		},
	}
	if pl.snaps != nil {
		loop.Collector, loop.Held = pl.snaps, pl.snaps.Held
	}
	if pl.loop, err = converge.New(loop); err != nil {
		return nil, err
	}
	tells := leads
	if w.broken.tellsOld {
		tells = nil
	}
	m, streams := metrics.New("sim"), web.NewStreams(maxStreams)
	cfg := api.Config{
		Store: store, Environments: pl.life, Awaiter: pl.life, Guests: guests, Hosts: pl.hosts, Keeper: keeper,
		Gate: auth.New(auth.Config{Token: apiToken}), Metrics: m, Logger: p.log, Version: "sim",
		Ready:          []api.Check{{Name: "state_store", Run: store.Ready}},
		MetricsHandler: m.Handler(), Leads: tells, Streams: streams,
		Extra: slices.Concat(placing.QuotaRoutes(book, keeper),
			feed.Routes(feed.Config{Store: store, Streams: streams, Metrics: m, Sight: func(string) events.Sight { return events.Sight{} }})),
	}
	if pl.snaps != nil {
		cfg.Forker, cfg.Pauser, cfg.Extra = pl.snaps, pl.pauses, append(cfg.Extra, snapshotroutes.Routes(pl.snaps, keeper)...)
	}
	pl.api, err = api.New(cfg)
	return pl, err
}

func (pl *plane) close(ctx context.Context) error {
	var left error
	if pl.snaps != nil {
		left = errors.Join(pl.snaps.Close(ctx), pl.pauses.Close(ctx))
	}
	return errors.Join(left, pl.life.Close(ctx), pl.hosts.Close(), pl.store.Close(context.WithoutCancel(ctx)))
}

type fencer struct{ store *state.Store }

// Fence implements provider.Fencer.
func (f fencer) Fence() (provider.Fence, error) {
	fleetID, term, claim, fingerprint, err := f.store.Fence()
	revision, _ := f.store.Head()
	return provider.Fence{FleetID: fleetID, Term: term, ClaimToken: claim, Fingerprint: fingerprint, Revision: revision}, err
}

// Proof implements provider.Prover.
func (f fencer) Proof(term int64) provider.Proof {
	token, revision := f.store.Proof(term)
	return provider.Proof{Token: token, Revision: revision}
}

// Accepted implements provider.Prover.
func (f fencer) Accepted() bool { return false }

type orphans struct{ hosts *hosts.Service }

// DestroyOrphan implements converge.OrphanKiller.
func (o orphans) DestroyOrphan(ctx context.Context, hostID, id, lifeUID string) error {
	p, err := o.hosts.Provider(hostID)
	if err != nil {
		return err
	}
	return p.Destroy(ctx, provider.Ref{ID: id, UID: lifeUID, OpID: uid.New()})
}
