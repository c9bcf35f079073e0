package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"sync/atomic"

	"github.com/fusevm/fuse/internal/api"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/converge"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/idempotency"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/provider/remote"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/store/sqlite"
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
	keeper   *idempotency.Keeper
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
				URL: h.URL, Token: token, CertSHA256: h.CertSHA256, Fencer: fencer{p.store},
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
	if p.guests, err = guestops.New(guestops.Config{Store: p.store, Providers: p.hosts}); err != nil {
		return nil, err
	}
	return p, p.wireEdges()
}

// wireEdges makes what calls the services: the loop and the API.
func (p *plane) wireEdges() (err error) {
	p.keeper = idempotency.New(p.store)
	p.loop, err = converge.New(converge.Config{
		Store: p.store, Looker: p.hosts, Destroyer: p.life, OrphanKiller: orphans{p.hosts}, Logger: p.log,
		Interval: p.settings.ReconcileInterval, Events: p.store,
		Metrics: p.cycleDone,
	})
	if err != nil {
		return err
	}
	gate := auth.New(auth.Config{
		Token: p.settings.AuthToken, AllowedCIDRs: p.settings.AllowedCIDRs, SecureCookies: p.settings.SecureCookies,
	})
	p.metrics.WatchFleet(p.fleetNow)
	p.api, err = api.New(api.Config{
		Store: p.store, Environments: p.life, Awaiter: p.life, Guests: p.guests, Hosts: p.hosts, Keeper: p.keeper,
		Gate: gate, Metrics: p.metrics, Logger: p.log, Version: version,
		Ready: []api.Check{
			{Name: "state_store", Run: p.store.Ready},
			{Name: "fleet", Run: p.fleetReady},
		},
		MetricsHandler: p.metrics.Handler(), MetricsOpen: p.settings.Loopback(),
		Record: func(ctx context.Context, ev fleet.Event) error {
			_, err := p.store.Update(ctx, func(tx *state.Tx) error { tx.Emit(ev); return nil })
			return err
		},
		WriteTimeout: p.settings.WriteTimeout,
	})
	return err
}

func openSealer(s config.Server) (*secrets.Sealer, error) {
	var key secrets.Key
	var err error
	if s.EncryptionKey != "" {
		key, err = secrets.ParseKey(s.EncryptionKey)
	} else {
		key, err = fileKey(dataDir(s.DataDir))
	}
	if err != nil {
		return nil, fmt.Errorf("encryption key: %w", err)
	}
	return secrets.NewSealer(key), nil
}

// fileKey reads the key of a data directory, and makes one only for a state
// that has nothing sealed yet: a new key would make what the old one sealed
// unreadable without a word.
func fileKey(dir dataDir) (secrets.Key, error) {
	path := dir.path("key")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if db, err := os.Stat(dir.path("fuse.db")); err == nil && db.Size() > 0 {
			return secrets.Key{}, fleet.Errorf(fleet.CodeUnavailable, "%s is missing, but the state that it seals is there", path).
				With(fleet.DetailRemedy, "restore the file, or give the key in TOKEN_ENCRYPTION_KEY; without it move fuse.db away and register the hosts again")
		}
	}
	return secrets.LoadOrCreateKey(path)
}

func (p *plane) openStore(ctx context.Context) error {
	journal := sqlite.New(sqlite.Config{Path: dataDir(p.settings.DataDir).path("fuse.db"), Logger: p.log})
	p.journal = journal
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "unknown"
	}
	p.store, err = state.Open(ctx, state.Config{
		Journal: journal, Lease: journal, Logger: p.log,
		Candidate: state.Candidate{Name: fmt.Sprintf("%s pid %d", hostname, os.Getpid())},
	})
	return err
}

// fencer adapts the state owner to what providers ask before a mutation.
type fencer struct{ store *state.Store }

// Fence implements provider.Fencer.
func (f fencer) Fence() (provider.Fence, error) {
	fleetID, term, claim, fingerprint, err := f.store.Fence()
	return provider.Fence{FleetID: fleetID, Term: term, ClaimToken: claim, Fingerprint: fingerprint}, err
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

// httpServer makes the server of the API.
func (p *plane) httpServer() *http.Server {
	s := p.settings
	return p.api.HTTPServer(api.Timeouts{
		ReadHeader: s.ReadHeaderTimeout, Write: s.WriteTimeout, Idle: s.IdleTimeout, MaxHeaderBytes: s.MaxHeaderBytes,
	}, s.Certificate)
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
