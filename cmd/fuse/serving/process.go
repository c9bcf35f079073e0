// Package serving is a server process as such: its listeners, what answers there,
// and the control planes that it runs one after the other, whenever it owns the
// fleet. What a plane consists of is the caller's.
package serving

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fusevm/fuse/cmd/fuse/figures"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/lease"
	"github.com/fusevm/fuse/internal/metrics"
	"github.com/fusevm/fuse/internal/standby"
	"github.com/fusevm/fuse/internal/state"
)

// Config of a Process. All of it is needed.
type Config struct {
	Settings config.Server
	Metrics  *metrics.Metrics
	Version  string
	// Secret proves other servers to this one; NewSecret makes it.
	Secret string
	Logger *slog.Logger
}

// Plane is a control plane that is wired and does not run yet.
type Plane struct {
	API   API
	Loops []func(context.Context) error // each returns when its context ends
	// Recovered and Ready wait until it may be served, and until it is ready.
	Recovered, Ready func(context.Context) error
	// Lost is why the plane does not own the fleet any more; nil while it does.
	Lost func() error
	// Close waits for work until its context ends and gives the fleet up.
	Close func(context.Context) error
}

// API answers for a plane.
type API interface {
	http.Handler
	EndStreams()
}

// Process is what a server is whether it leads or not.
type Process struct {
	Self  state.Candidate
	Front *standby.Front
	URL   string // of the API, for people

	cfg      Config
	settings config.Server
	log      *slog.Logger
	metrics  *metrics.Metrics
	srv      *http.Server
	listener net.Listener
	scraped  net.Listener // for metrics; nil: none
}

// Times that the end of a term takes at most.
const (
	// drainTime is how long calls may go on after a signal.
	drainTime = 2 * time.Second
	// handoverTime is the same, and for the work behind them, when another server
	// waits to take over: that one resumes or undoes what is left.
	handoverTime = time.Second
	// lossTime is for work whose calls have been cancelled to notice.
	lossTime = time.Second
	// StoreTime is for giving the lease back.
	StoreTime = 5 * time.Second
)

// New opens the listeners; nothing answers before Run.
func New(ctx context.Context, cfg Config) (*Process, error) {
	s, log := cfg.Settings, cfg.Logger
	r := &Process{cfg: cfg, settings: s, log: log, metrics: cfg.Metrics}
	var err error
	if r.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", s.Listen); err != nil {
		return nil, fmt.Errorf("listen for the API (choose another address with --listen): %w", err)
	}
	if r.scraped, err = listenMetrics(ctx, s); err != nil {
		return nil, errors.Join(err, r.listener.Close())
	}
	r.URL = urlOf(s, r.listener)
	r.Self = state.Candidate{Name: Name(), Address: s.Advertise, Secret: cfg.Secret}
	if r.Self.Address == "" {
		r.Self.Address = r.URL
	}
	if s.Certificate != nil {
		r.Self.CertSHA256 = standby.Fingerprint(s.Certificate.Certificate[0])
	}
	r.Front = standby.NewFront(standby.FrontConfig{
		Self: r.Self, Version: cfg.Version, Logger: log, WriteTimeout: s.WriteTimeout,
		Gate: auth.New(auth.Config{
			Token: s.AuthToken, AllowedCIDRs: s.AllowedCIDRs, SecureCookies: s.SecureCookies,
		}),
		MetricsHandler: cfg.Metrics.Handler(), MetricsOpen: s.Loopback(),
	})
	r.srv = r.Front.HTTPServer(standby.Timeouts{
		ReadHeader: s.ReadHeaderTimeout, Write: s.WriteTimeout, Idle: s.IdleTimeout, MaxHeaderBytes: s.MaxHeaderBytes,
	}, s.Certificate)
	r.srv.RegisterOnShutdown(func() { time.AfterFunc(handoverTime, r.Front.Stop) })
	return r, nil
}

// Name tells this process to people.
func Name() string {
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "unknown"
	}
	return fmt.Sprintf("%s pid %d", hostname, os.Getpid())
}

// NewSecret makes a secret that nobody guesses.
func NewSecret() string {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}

// Run answers until ctx ends or lead returns an error. lead returns nil only
// after ctx has ended.
func (r *Process) Run(ctx context.Context, lead func(context.Context) error) error {
	for _, w := range r.settings.Warnings {
		r.log.Warn("setting", slog.String("warning", w))
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return lead(ctx) })
	g.Go(func() error { return serveHTTP(ctx, r.srv, r.listener, r.log) })
	if r.scraped != nil {
		m := figures.Scraped{Settings: r.settings, Metrics: r.metrics, API: r.Front, Log: r.log}.Server()
		g.Go(func() error { return serveHTTP(ctx, m, r.scraped, r.log) })
	}
	return g.Wait()
}

// Election is how a process comes to lead.
type Election struct {
	// Watched is read for who leads. It belongs to the election.
	Watched interface {
		state.Lease
		io.Closer
	}
	// Open acquires the lease and makes a plane on it.
	Open func(context.Context) (Plane, error)
	// Admit refuses a leader whom this process could not follow on; see standby.Config.
	Admit func(leader state.Candidate) error
	// Out is told which of the two parts the process plays.
	Out io.Writer
}

// Elect leads whenever the lease is free, and follows who has it otherwise. It
// goes into Run.
func (r *Process) Elect(ctx context.Context, e Election) error {
	r.forget()
	err := standby.NewElector(standby.Config{
		Leaders: e.Watched, View: &told{Process: r, out: e.Out}, Secret: r.Self.Secret, Logger: r.log, Admit: e.Admit,
		Poll:         lease.Timing{Period: r.settings.Lease}.Poll(),
		StoreTimeout: r.settings.StoreTimeout,
		Lead: func(ctx context.Context) error {
			r.Front.Wait(errTakingOver)
			defer r.forget() // also of one that came to nothing
			p, err := e.Open(ctx)
			if err != nil {
				return err
			}
			return r.Reign(ctx, p, func() { fmt.Fprintf(e.Out, "serving %s, version %s\n", r.URL, r.cfg.Version) })
		},
	}).Run(ctx)
	return errors.Join(err, e.Watched.Close())
}

// told says for whom a server stands by, once for each.
type told struct {
	*Process
	out  io.Writer
	term int64
}

// Wait implements standby.View.
func (t *told) Wait(reason error) { t.Front.Wait(reason) }

// Follow implements standby.View.
func (t *told) Follow(ctx context.Context, info state.LeaseInfo) {
	if t.term != info.Term {
		t.term = info.Term
		fmt.Fprintf(t.out, "standing by at %s for %v, version %s\n", t.URL, info.Candidate, t.cfg.Version)
	}
	t.Front.Follow(ctx, info)
}

var errTakingOver = fleet.Errorf(fleet.CodeUnavailable, "this server is taking the fleet over")

// forget takes the figures of a plane that is gone out of the metrics.
func (r *Process) forget() {
	r.metrics.WatchFleet(nil)
	r.metrics.WatchPool(nil)
	r.metrics.WatchWebhooks(nil)
	r.metrics.WatchLease(func() metrics.Lease { return metrics.Lease{} })
}

// Reign runs p until ctx ends, its term ends, or a part of it fails, and takes
// it down.
func (r *Process) Reign(ctx context.Context, p Plane, ready func()) error {
	g, running := errgroup.WithContext(ctx)
	for _, loop := range p.Loops {
		g.Go(func() error { return ignoreCanceled(loop(running)) })
	}
	var reign *standby.Reign
	decided := make(chan struct{}) // reign is there, or will never be
	g.Go(func() error {
		err := p.Recovered(running)
		if err == nil {
			reign = r.Front.Lead(p.API)
		}
		close(decided)
		if err == nil {
			err = p.Ready(running)
		}
		if err != nil {
			return ignoreCanceled(err)
		}
		ready()
		return nil
	})
	<-running.Done()
	<-decided
	down := make(chan error, 1)
	go func() { down <- r.takeDown(ctx, p, reign, g) }()
	limit := time.NewTimer(r.settings.ShutdownTimeout + drainTime + StoreTime + lossTime)
	defer limit.Stop()
	select {
	case err := <-down:
		return err
	case <-limit.C:
		// Nothing can be written or called any more, but half a plane is no standby.
		return errors.New("the control plane could not be taken down")
	}
}

// takeDown ends a plane whose context or term has ended: first the streams, so
// that their clients look for the next leader, then the calls, then the work
// behind them, then the store, which gives the lease back.
func (r *Process) takeDown(ctx context.Context, p Plane, reign *standby.Reign, g *errgroup.Group) error {
	calls, work, cause := drainTime, r.settings.ShutdownTimeout, errStopped
	switch {
	case ctx.Err() == nil: // it has ended by itself: there is nothing to wait for
		calls, work, cause = 0, lossTime, errChanged
	case len(r.Front.Standbys()) > 0:
		calls, work = handoverTime, handoverTime
	}
	began := time.Now()
	ctx = context.WithoutCancel(ctx)
	p.API.EndStreams()
	if reign != nil {
		limit, cancel := context.WithTimeout(ctx, calls)
		if !reign.End(limit, cause) {
			r.log.Warn("calls do not end")
		}
		cancel()
	}
	called := time.Since(began)
	limit, cancel := context.WithTimeout(ctx, max(work-called, 0))
	defer cancel()
	loops := make(chan error, 1)
	go func() { loops <- g.Wait() }()
	var err error
	ended := false
	select {
	case err = <-loops: // they may have something to write yet
		ended = true
	case <-limit.Done():
	}
	lost := p.Lost() // before it is closed
	closing := p.Close(limit)
	if !ended {
		err = <-loops
	}
	r.log.Info("control plane taken down", slog.Any("because", cause), slog.Duration("calls", called), slog.Duration("took", time.Since(began)))
	if lost != nil {
		err = fmt.Errorf("this server cannot go on: %w", lost) // and not what broke because of it
	}
	switch {
	case err == nil:
		return closing
	case closing != nil:
		r.log.Warn("control plane not closed cleanly", slog.Any("error", closing))
	}
	return err
}

var (
	errStopped = fleet.Errorf(fleet.CodeUnavailable, "the server is stopping")
	errChanged = fleet.Errorf(fleet.CodeUnavailable, "this server does not own the fleet any more")
)

func listenMetrics(ctx context.Context, s config.Server) (net.Listener, error) {
	if s.MetricsListen == "" {
		return nil, nil //nolint:nilnil // no listener is a valid answer
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", s.MetricsListen)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w", err)
	}
	return l, nil
}

func urlOf(s config.Server, l net.Listener) string {
	scheme := "http"
	if s.Certificate != nil {
		scheme = "https"
	}
	return scheme + "://" + Reachable(l.Addr().String())
}

// Reachable is an address to connect to: that of all interfaces is none, and
// becomes the machine's name.
func Reachable(addr string) string {
	host, port, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsUnspecified() {
		return addr
	}
	host = "127.0.0.1"
	if name, err := os.Hostname(); err == nil {
		host = name
	}
	return net.JoinHostPort(host, port)
}

// serveHTTP serves until ctx ends and then for at most two seconds: requests
// that take longer are cut, the work behind them goes on.
func serveHTTP(ctx context.Context, srv *http.Server, l net.Listener, log *slog.Logger) error {
	done := make(chan error, 1)
	go func() {
		if srv.TLSConfig != nil {
			done <- srv.ServeTLS(l, "", "")
		} else {
			done <- srv.Serve(l)
		}
	}()
	select {
	case err := <-done:
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	if err := srv.Shutdown(grace); err != nil {
		log.Info("requests cut at shutdown", slog.Any("error", err))
		if err := srv.Close(); err != nil {
			log.Warn("close the listener", slog.Any("error", err))
		}
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}

func ignoreCanceled(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
