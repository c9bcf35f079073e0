// Package plane wires a control plane: the one place where all of its services
// meet. A file per area; commands open a plane and serve it.
package plane

import (
	"context"
	"errors"
	"github.com/fusevm/fuse/internal/amend"
	"log/slog"
	"net/http"
	"sync/atomic"

	"github.com/fusevm/fuse/cmd/fuse/figures"
	"github.com/fusevm/fuse/cmd/fuse/serving"
	"github.com/fusevm/fuse/internal/admission"
	"github.com/fusevm/fuse/internal/api"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/evacuation"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/images"
	"github.com/fusevm/fuse/internal/join"
	apikeys "github.com/fusevm/fuse/internal/keys"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/pausing"
	"github.com/fusevm/fuse/internal/playguard/service"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/remote"
	"github.com/fusevm/fuse/internal/quota"
	"github.com/fusevm/fuse/internal/reattach"
	"github.com/fusevm/fuse/internal/rotation"
	"github.com/fusevm/fuse/internal/snapshots"
	"github.com/fusevm/fuse/internal/standby"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/tracing"
	"github.com/fusevm/fuse/internal/uid"
	"github.com/fusevm/fuse/internal/usage"
	"github.com/fusevm/fuse/internal/webhooks"
)

// Plane is a control plane, wired and not yet running. Fields are in the order
// in which they depend on each other; close takes them down in reverse.
type Plane struct {
	settings config.Server
	version  string
	log      *slog.Logger
	self     state.Candidate
	front    *standby.Front // of the process; nil for a plane that stands alone
	journal  state.Journal
	Store    *state.Store
	metrics  *metrics.Metrics
	tracer   *tracing.Tracer
	Hosts    *hosts.Service
	quotas   *quota.Book
	desk     *admission.Desk
	life     *lifecycle.Service
	drains   *evacuation.Service
	joins    *join.Service
	guests   *guestops.Service

	snapshots *snapshots.Service
	pausing   *pausing.Service

	webhooks *webhooks.Service
	streams  *web.Streams
	images   *images.Service
	usage    *usage.Service
	amender  *amend.Service
	back     *reattach.Service
	keeper   *idempotency.Keeper
	keys     *apikeys.Service
	rotation *rotation.Service
	loop     *converge.Loop
	figures  *figures.Plane
	// playguard is nil in a plane that does not run it.
	playguard *service.Service
	strays    strays
	ends      ends // of playgrounds, tricks, and who is told
	sources   sources
	// runPlayguard is its loop.
	runPlayguard func(context.Context) error
	api          *api.Server

	// NotYet is what has to happen before work may come, beyond the first
	// converge; nil: nothing.
	NotYet atomic.Pointer[string]
}

func (p *Plane) fleetReady(context.Context) error {
	if err := p.loop.Ready(); err != nil {
		return err
	}
	if what := p.NotYet.Load(); what != nil {
		return fleet.Errorf(fleet.CodeUnavailable, "%s", *what)
	}
	return nil
}

// Config says what a plane is part of.
type Config struct {
	Settings config.Server
	Version  string
	Image    string // for requests that name none; empty: they have to
	Log      *slog.Logger
	Metrics  *metrics.Metrics
	Self     state.Candidate
	Front    *standby.Front // of the process; nil for a plane that stands alone
	Accepted bool           // the first plane of a start that confirms another store
}

// New makes a plane whose process lives and ends with it.
func New(ctx context.Context, c Config) (*Plane, error) {
	c.Metrics, c.Accepted = metrics.New(c.Version), c.Settings.AcceptStore
	c.Self = state.Candidate{Name: serving.Name(), Address: c.Settings.Advertise, Secret: serving.NewSecret()}
	return Open(ctx, c)
}

// Open opens the store, which makes this process the owner of the fleet,
// and wires the services to it.
func Open(ctx context.Context, c Config) (_ *Plane, err error) {
	s, defaultImage, log := c.Settings, c.Image, c.Log
	p := &Plane{settings: s, version: c.Version, log: log, metrics: c.Metrics, self: c.Self, front: c.Front}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close(ctx))
		}
	}()
	if p.tracer, err = tracing.New(ctx, tracing.Config{Service: "fuse-server", Version: p.version, Logger: log}); err != nil {
		return nil, err
	}
	sealer, err := OpenSealer(s)
	if err != nil {
		return nil, err
	}
	if err := p.openStore(ctx); err != nil {
		return nil, err
	}
	if err := p.checkKey(ctx, sealer); err != nil {
		return nil, err
	}
	p.Hosts, err = hosts.New(hosts.Config{
		Store: p.Store, Sealer: sealer, Logger: log, Contact: remote.FirstContact, Lost: lost(p),
		UnreachableLooks: s.Hosts.UnreachableLooks, UnreachableAfter: s.Hosts.UnreachableAfter, ProbeInterval: s.Hosts.ProbeInterval,
		NewProvider: func(h fleet.Host, token string) (provider.Provider, error) {
			return remote.New(remote.Config{
				HostID: h.ID, Release: p.version, URL: h.URL, Token: token, CertSHA256: h.CertSHA256, Fencer: fencer{p.Store, s.AcceptStore, s.Store == config.StoreMemory && s.FleetID != ""},
				RegistryID: h.Facts.RegistryID, MachineID: h.Facts.MachineID,
				Guard: p.leads, Wrap: func(next http.RoundTripper) http.RoundTripper { return serving.Leading{Next: next, Store: p.Store} },
			})
		},
	})
	if err != nil {
		return nil, err
	}
	if err := wireImages(p); err != nil {
		return nil, err
	}
	wireAdmission(p)
	wireUsage(p)
	p.amender = amend.New(p.Store).WithHosts(p.Store, p.Hosts).WithSecrets(sealer, lifecycle.SealKindVMBoot)
	p.life, err = lifecycle.New(lifecycle.Config{
		Store: p.Store, Providers: p.images, Pin: p.images.Pin, Sealer: sealer, Logger: log,
		Admission: p.desk, VMPrefix: s.VMPrefix, Seed: seedOf,
		Defaults: lifecycle.Defaults{CPUs: s.Placing.CPUs, RamMB: s.Placing.RamMB, StorageGB: s.Placing.DiskGB, Image: defaultImage},
		Limits: lifecycle.Limits{
			StartupTimeout: s.StartupScriptTimeout, StartupCeiling: s.MaxStartupScriptTimeout, Tries: s.Placing.Tries,
			HostCreate: p.images.CreateTimeout(),
		},
		Created: figures.Created(p.metrics),
	})
	if err != nil {
		return nil, err
	}
	if err := wireHostLife(p); err != nil {
		return nil, err
	}
	if p.back, err = p.newReattacher(sealer); err != nil {
		return nil, err
	}
	if err := p.wireRotation(sealer); err != nil {
		return nil, err
	}
	if err := wireSnapshots(p, sealer); err != nil {
		return nil, err
	}
	if p.guests, err = guestops.New(guestops.Config{Store: p.Store, Providers: p.Hosts, Wake: api.Discreetly(p.pausing.Wake)}); err != nil {
		return nil, err
	}
	if err := wireWebhooks(p, sealer); err != nil {
		return nil, err
	}
	if err := wirePlayguard(p, sealer); err != nil {
		return nil, err
	}
	if err := p.wireEdges(); err != nil {
		return nil, err
	}
	if c.Accepted {
		err = serving.PauseAccepted(ctx, p.loop, log)
	}
	return p, err
}

// orphans destroys at its host what no row knows.
type orphans struct{ hosts *hosts.Service }

// DestroyOrphan implements converge.OrphanKiller.
func (o orphans) DestroyOrphan(ctx context.Context, hostID, id, lifeUID string) error {
	p, err := o.hosts.Provider(hostID)
	if err != nil {
		return err
	}
	return p.Destroy(ctx, provider.Ref{ID: id, UID: lifeUID, OpID: uid.New()})
}

// leftOver is an error of a close, unless work is just left to the next leader.
func leftOver(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return err
}

// Close waits for work under way until ctx ends, leaves the rest to the next
// leader's recovery, and gives the fleet up.
func (p *Plane) Close(ctx context.Context) error {
	var errs []error
	if p.life != nil {
		switch err := p.life.Close(ctx); {
		case errors.Is(err, context.DeadlineExceeded):
			p.log.Warn("work is left to the next leader")
		case err != nil:
			errs = append(errs, err)
		}
	}
	if p.rotation != nil {
		p.rotation.Close()
	}
	if p.snapshots != nil && p.pausing != nil {
		errs = append(errs, leftOver(errors.Join(p.snapshots.Close(ctx), p.pausing.Close(ctx))))
	}
	if p.Hosts != nil {
		errs = append(errs, p.Hosts.Close())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), serving.StoreTime)
	defer cancel()
	if p.Store != nil {
		errs = append(errs, p.Store.Close(ctx))
	}
	if p.journal != nil {
		errs = append(errs, p.journal.Close())
	}
	if err := p.tracer.Close(ctx); err != nil {
		p.log.Warn("last traces not delivered", slog.Any("error", err))
	}
	return errors.Join(errs...)
}
