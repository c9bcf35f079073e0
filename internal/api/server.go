package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/tracing"
)

// Config wires a Server. All but the fields that say otherwise are needed.
type Config struct {
	Store        Store
	Environments Environments
	Awaiter      Awaiter
	Guests       Guests
	Hosts        Hosts
	// HostActions are actions on hosts beside cordon and uncordon.
	HostActions map[string]web.Action
	// Health says what an environment's healthcheck last said; nil: nothing.
	Health  func(*fleet.VM) (fleet.HealthStatus, bool)
	Keeper  web.Keeper
	Gate    *auth.Gate
	Metrics Metrics
	Tracer  *tracing.Tracer // nil makes no traces
	Logger  *slog.Logger
	Version string
	// Ready are the checks behind /ready and /readyz.
	Ready []Check
	// MetricsHandler answers /metrics, behind the token; with MetricsOpen, for a
	// server on loopback, only where another name than a loopback one is used.
	MetricsHandler http.Handler
	MetricsOpen    bool
	// Record stores events of refused requests; nil drops them.
	Record func(context.Context, fleet.Event) error
	// WriteTimeout bounds writing an answer; zero is a minute. DestroyWait is
	// how long a DELETE waits for the host before it answers 202; zero is 30 s.
	WriteTimeout, DestroyWait time.Duration
	// Extra are the routes of other areas; the packages beside web make them.
	Extra   []web.Route
	Amender Amender
	// Rotator answers rotate-token; nil refuses it.
	Rotator Rotator
	// Forker and Pauser answer fork, and pause and resume; nil refuses them.
	Forker Forker
	Pauser Pauser
	// Owners find the owners of objects of other areas.
	Owners map[auth.Object]OwnerOf
	// Leads returns why this process may not speak for the fleet any more; nil:
	// it always may.
	Leads func() error
	// Streams bounds the event streams of all areas; nil takes one of 10,000.
	Streams *web.Streams
}

// Server answers the API. Run must run beside it.
type Server struct {
	cfg      Config
	log      *slog.Logger
	router   *web.Router
	reporter *auth.Reporter
	refused  chan fleet.Event

	readTimeout time.Duration
}

// queuedRefusals bounds the events of refused requests that wait to be stored.
const queuedRefusals = 64

// defaultStreams bounds the event streams at a time.
const defaultStreams = 10_000

// New makes a Server.
func New(cfg Config) (*Server, error) {
	if cfg.Store == nil || cfg.Environments == nil || cfg.Awaiter == nil || cfg.Guests == nil || cfg.Hosts == nil || cfg.Keeper == nil ||
		cfg.Gate == nil || cfg.Metrics == nil || cfg.Logger == nil || cfg.MetricsHandler == nil {
		return nil, errors.New("api config: store, services, keeper, gate, metrics and logger are needed")
	}
	if cfg.WriteTimeout == 0 {
		cfg.WriteTimeout = time.Minute
	}
	if cfg.DestroyWait == 0 {
		cfg.DestroyWait = 30 * time.Second
	}
	if cfg.Streams == nil {
		cfg.Streams = web.NewStreams(defaultStreams)
	}
	if cfg.Record == nil {
		cfg.Record = func(context.Context, fleet.Event) error { return nil }
	}
	s := &Server{
		cfg: cfg, log: cfg.Logger,
		reporter: auth.NewReporter(), refused: make(chan fleet.Event, queuedRefusals), readTimeout: defaultReadTimeout,
	}
	s.router = web.NewRouter(s.routes())
	return s, nil
}

// Run stores the events of refused requests until ctx is done. Nothing else
// waits for it.
func (s *Server) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev := <-s.refused:
			if err := s.cfg.Record(ctx, ev); err != nil && ctx.Err() == nil {
				s.log.Warn("event of a refused request not stored", slog.String("type", ev.Type), slog.Any("error", err))
			}
		}
	}
}

// EndStreams ends every event stream; their clients resume elsewhere or later.
// HTTPServer does it at the beginning of a shutdown.
func (s *Server) EndStreams() { s.cfg.Streams.End() }

// Timeouts of an HTTP server; zero fields take the defaults of the settings.
type Timeouts struct {
	ReadHeader, Write, Idle time.Duration
	MaxHeaderBytes          int
}

// HTTPServer makes the server that serves s, with cert if not nil. Its
// Shutdown does not wait for event streams.
func (s *Server) HTTPServer(t Timeouts, cert *tls.Certificate) *http.Server {
	srv := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: cmp.Or(t.ReadHeader, 5*time.Second),
		WriteTimeout:      cmp.Or(t.Write, time.Minute),
		IdleTimeout:       cmp.Or(t.Idle, 2*time.Minute),
		MaxHeaderBytes:    cmp.Or(t.MaxHeaderBytes, 64<<10),
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return context.Background() },
	}
	if cert != nil {
		srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12}
	}
	srv.RegisterOnShutdown(s.EndStreams)
	return srv
}
