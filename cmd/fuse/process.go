package main

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

// process is what a server is whether it leads or not: its listeners and what
// answers there.
type process struct {
	settings config.Server
	log      *slog.Logger
	metrics  *metrics.Metrics
	self     state.Candidate
	front    *standby.Front
	url      string
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
	// storeTime is for giving the lease back.
	storeTime = 5 * time.Second
)

// newProcess opens the listeners; nothing answers before run. By secret other
// servers prove themselves to this one.
func newProcess(ctx context.Context, s config.Server, m *metrics.Metrics, secret string, log *slog.Logger) (*process, error) {
	r := &process{settings: s, log: log, metrics: m}
	var err error
	if r.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", s.Listen); err != nil {
		return nil, fmt.Errorf("listen for the API (choose another address with --listen): %w", err)
	}
	if r.scraped, err = listenMetrics(ctx, s); err != nil {
		return nil, errors.Join(err, r.listener.Close())
	}
	r.url = urlOf(s, r.listener)
	r.self = state.Candidate{Name: processName(), Address: s.Advertise, Secret: secret}
	if r.self.Address == "" {
		r.self.Address = r.url
	}
	if s.Certificate != nil {
		r.self.CertSHA256 = standby.Fingerprint(s.Certificate.Certificate[0])
	}
	r.front = standby.NewFront(standby.FrontConfig{
		Self: r.self, Version: version, Logger: log, WriteTimeout: s.WriteTimeout,
		Gate: auth.New(auth.Config{
			Token: s.AuthToken, AllowedCIDRs: s.AllowedCIDRs, SecureCookies: s.SecureCookies,
		}),
		MetricsHandler: m.Handler(), MetricsOpen: s.Loopback(),
	})
	r.srv = r.front.HTTPServer(standby.Timeouts{
		ReadHeader: s.ReadHeaderTimeout, Write: s.WriteTimeout, Idle: s.IdleTimeout, MaxHeaderBytes: s.MaxHeaderBytes,
	}, s.Certificate)
	r.srv.RegisterOnShutdown(func() { time.AfterFunc(handoverTime, r.front.Stop) })
	return r, nil
}

// processName tells this process to people.
func processName() string {
	hostname, err := os.Hostname()
	if err != nil {
		hostname = "unknown"
	}
	return fmt.Sprintf("%s pid %d", hostname, os.Getpid())
}

func newSecret() string {
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}

// run answers until ctx ends or lead returns an error. lead returns nil only
// after ctx has ended.
func (r *process) run(ctx context.Context, lead func(context.Context) error) error {
	for _, w := range r.settings.Warnings {
		r.log.Warn("setting", slog.String("warning", w))
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return lead(ctx) })
	g.Go(func() error { return serveHTTP(ctx, r.srv, r.listener, r.log) })
	if r.scraped != nil {
		m := figures.Scraped{Settings: r.settings, Metrics: r.metrics, API: r.front, Log: r.log}.Server()
		g.Go(func() error { return serveHTTP(ctx, m, r.scraped, r.log) })
	}
	return g.Wait()
}

// elect leads whenever the lease is free, and follows who has it otherwise.
// It tells people on out which of the two it does.
func (r *process) elect(ctx context.Context, image string, out io.Writer) error {
	watched := newStorage(r.settings, r.log)
	r.metrics.WatchLease(func() metrics.Lease { return metrics.Lease{} })
	err := standby.NewElector(standby.Config{
		Leaders: watched, View: &told{Front: r.front, url: r.url, out: out}, Secret: r.self.Secret, Logger: r.log,
		Poll:         lease.Timing{Period: r.settings.Lease}.Poll(),
		StoreTimeout: r.settings.StoreTimeout,
		Lead: func(ctx context.Context) error {
			r.front.Wait(errTakingOver)
			p, err := openPlane(ctx, planeConfig{settings: r.settings, image: image, log: r.log, metrics: r.metrics, self: r.self, watched: watched, front: r.front})
			if err != nil {
				return err
			}
			defer r.forget()
			return r.reign(ctx, p, func() { fmt.Fprintf(out, "serving %s, version %s\n", r.url, version) })
		},
	}).Run(ctx)
	return errors.Join(err, watched.Close())
}

// told says for whom a server stands by, once for each.
type told struct {
	*standby.Front
	url  string
	out  io.Writer
	term int64
}

// Follow implements standby.View.
func (t *told) Follow(ctx context.Context, info state.LeaseInfo) {
	if t.term != info.Term {
		t.term = info.Term
		fmt.Fprintf(t.out, "standing by at %s for %v, version %s\n", t.url, info.Candidate, version)
	}
	t.Front.Follow(ctx, info)
}

var errTakingOver = fleet.Errorf(fleet.CodeUnavailable, "this server is taking the fleet over")

// forget takes the figures of a plane that is gone out of the metrics.
func (r *process) forget() {
	r.metrics.WatchFleet(nil)
	r.metrics.WatchPool(nil)
	r.metrics.WatchLease(func() metrics.Lease { return metrics.Lease{} })
}

// reign runs p until ctx ends, its term ends, or a part of it fails, and takes
// it down.
func (r *process) reign(ctx context.Context, p *plane, ready func()) error {
	g, running := errgroup.WithContext(ctx)
	for _, loop := range p.loops() {
		g.Go(func() error { return ignoreCanceled(loop(running)) })
	}
	var reign *standby.Reign
	decided := make(chan struct{}) // reign is there, or will never be
	g.Go(func() error {
		err := p.loop.WaitRecovered(running)
		if err == nil {
			reign = r.front.Lead(p.api)
		}
		close(decided)
		if err == nil {
			err = p.loop.WaitReady(running)
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
	limit := time.NewTimer(r.settings.ShutdownTimeout + drainTime + storeTime + lossTime)
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
func (r *process) takeDown(ctx context.Context, p *plane, reign *standby.Reign, g *errgroup.Group) error {
	calls, work, cause := drainTime, r.settings.ShutdownTimeout, errStopped
	switch {
	case ctx.Err() == nil: // it has ended by itself: there is nothing to wait for
		calls, work, cause = 0, lossTime, errChanged
	case len(r.front.Standbys()) > 0:
		calls, work = handoverTime, handoverTime
	}
	began := time.Now()
	ctx = context.WithoutCancel(ctx)
	p.api.EndStreams()
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
	lost := p.store.Err() // before it is closed
	closing := p.close(limit)
	err := g.Wait()
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

// serve runs one plane in a process of its own, which ends with it.
func (p *plane) serve(ctx context.Context, ready func(url string)) error {
	r, err := newProcess(ctx, p.settings, p.metrics, p.self.Secret, p.log)
	if err != nil {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.settings.ShutdownTimeout)
		defer cancel()
		return errors.Join(err, p.close(limit))
	}
	return r.run(ctx, func(ctx context.Context) error {
		return r.reign(ctx, p, func() { ready(r.url) })
	})
}

// watchStore ends a plane once it no longer leads the fleet or cannot tell what
// is durable: only a new one, which loads the state again, can go on.
func (p *plane) watchStore(ctx context.Context) error {
	select {
	case <-p.store.Failed():
		return p.store.Err()
	case <-ctx.Done():
		return nil
	}
}

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
	host, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return scheme + "://" + l.Addr().String()
	}
	// The address to listen on all interfaces is not one to connect to.
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if name, err := os.Hostname(); err == nil {
			host = name
		}
	}
	return scheme + "://" + net.JoinHostPort(host, port)
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
