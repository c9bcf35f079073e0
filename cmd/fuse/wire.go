package main

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/fusevm/fuse/internal/api"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/idempotency"
	apikeys "github.com/fusevm/fuse/internal/keys"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/remote"
	"github.com/fusevm/fuse/internal/reattach"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/uid"
)

// plane is a control plane, wired and not yet running. Fields are in the order
// in which they depend on each other; close takes them down in reverse.
type plane struct {
	settings config.Server
	log      *slog.Logger
	journal  state.Journal
	store    *state.Store
	metrics  *metrics.Metrics
	hosts    *hosts.Service
	life     *lifecycle.Service
	guests   *guestops.Service
	back     *reattach.Service
	keeper   *idempotency.Keeper
	keys     *apikeys.Service
	loop     *converge.Loop
	api      *api.Server

	// notYet is what has to happen before work may come, beyond the first
	// converge; nil: nothing.
	notYet atomic.Pointer[string]
}

func (p *plane) fleetReady(context.Context) error {
	if err := p.loop.Ready(); err != nil {
		return err
	}
	if what := p.notYet.Load(); what != nil {
		return fleet.Errorf(fleet.CodeUnavailable, "%s", *what)
	}
	return nil
}

// newPlane opens the store, which makes this process the owner of the fleet,
// and wires the services to it. Without a default image requests name their own.
func newPlane(ctx context.Context, s config.Server, defaultImage string, log *slog.Logger) (_ *plane, err error) {
	p := &plane{settings: s, log: log, metrics: metrics.New(version)}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close(ctx))
		}
	}()
	sealer, err := openSealer(s)
	if err != nil {
		return nil, err
	}
	if err := p.openStore(ctx); err != nil {
		return nil, err
	}
	p.hosts, err = hosts.New(hosts.Config{
		Store: p.store, Sealer: sealer, Logger: log,
		NewProvider: func(h fleet.Host, token string) (provider.Provider, error) {
			return remote.New(remote.Config{
				URL: h.URL, Token: token, CertSHA256: h.CertSHA256, Fencer: fencer{p.store, s.AcceptStore},
				RegistryID: h.Facts.RegistryID, MachineID: h.Facts.MachineID,
			})
		},
	})
	if err != nil {
		return nil, err
	}
	p.life, err = lifecycle.New(lifecycle.Config{
		Store: p.store, Providers: p.hosts, Sealer: sealer, Logger: log,
		Policy: s.Placement, VMPrefix: s.VMPrefix, Unreachable: p.hosts.Unreachable,
		Defaults: lifecycle.Defaults{Image: defaultImage},
		Limits:   lifecycle.Limits{StartupTimeout: s.StartupScriptTimeout, StartupCeiling: s.MaxStartupScriptTimeout},
		Created:  p.createDone,
	})
	if err != nil {
		return nil, err
	}
	if p.back, err = p.newReattacher(sealer); err != nil {
		return nil, err
	}
	if p.guests, err = guestops.New(guestops.Config{Store: p.store, Providers: p.hosts}); err != nil {
		return nil, err
	}
	return p, p.wireEdges()
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

// close waits for work under way and gives the fleet up.
func (p *plane) close(ctx context.Context) error {
	var errs []error
	if p.life != nil {
		errs = append(errs, p.life.Close(ctx))
	}
	if p.hosts != nil {
		errs = append(errs, p.hosts.Close())
	}
	if p.store != nil {
		errs = append(errs, p.store.Close(ctx))
	}
	if p.journal != nil {
		errs = append(errs, p.journal.Close())
	}
	return errors.Join(errs...)
}
