// Package guestd is the guest agent: it serves the protocol of guestwire to
// the host on the two-party link, and the published agent port with the VM's
// own certificate. Its subpackages boot the machine and run its processes.
package guestd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/files"
	"github.com/fusevm/fuse/internal/guestd/freeze"
	"github.com/fusevm/fuse/internal/guestd/health"
	"github.com/fusevm/fuse/internal/guestd/process"
	"github.com/fusevm/fuse/internal/guestd/procs"
	"github.com/fusevm/fuse/internal/guestd/rotated"
	"github.com/fusevm/fuse/internal/guestd/supervise"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1"
	"github.com/fusevm/fuse/internal/guestwire/guestwirev1/guestwirev1connect"
	"github.com/fusevm/fuse/internal/services"
)

// Limits of the two servers.
const (
	maxStreams     = 2 * process.MaxRunning // calls at once on one connection
	streamBuffer   = 256 << 10              // bytes a call may have received and not read
	headerTimeout  = 10 * time.Second
	agentIdle      = time.Minute
	maxHeaderBytes = 16 << 10
	stopTimeout    = 2 * time.Second
	maxStrangers   = 64 // connections to the published port at a time; more wait
)

// Config is what a Server serves.
type Config struct {
	VMID    string
	Token   string
	CertPEM []byte
	KeyPEM  []byte
	Version string // of the program
	// Rotated, if set, is the hash of the token that a rotation put in place of
	// Token, which then counts no more.
	Rotated *[sha256.Size]byte
	// EtcDir holds what outlives a reboot; empty means /etc/fuse.
	EtcDir string
	// FuseDir holds the machine's own files; empty means /fuse.
	FuseDir string
	// BootPhases are told to the host with the machine's other facts.
	BootPhases []BootPhase
	// Program is the image's own: what a service without a command runs.
	Program []string
	// Contain makes services with images of their own startable; nil: there are none.
	Contain func(ctx context.Context, s services.Service, env map[string]string, names []string) (supervise.Contained, error)
	// Capture makes the machine fit to be captured; nil: it cannot be.
	Capture *Capture
	// Shutdown is called after a request to power off has been answered.
	Shutdown func()
	Log      *slog.Logger
}

// BootPhase is how long one part of the boot took.
type BootPhase struct {
	Name string
	Took time.Duration
}

// Server is the guest agent's two network services.
type Server struct {
	cfg      Config
	runner   *process.Runner
	procs    *procs.Table
	id       atomic.Pointer[identity]
	bootID   string
	used     chan struct{}
	once     sync.Once
	probe    *health.Runner
	services *supervise.Supervisor
	freezer  *freeze.Freezer

	renewed   atomic.Pointer[renewed] // the last renewal that came to its end
	scrubbing sync.WaitGroup
	scrubs    sync.Mutex // one at a time
	rehearsed sync.Once
	down      chan struct{} // closed when nothing is served any more

	rotating sync.Mutex // one change of the identity at a time
	stale    [][]byte   // another machine's secrets, until they are overwritten
}

// New checks cfg. A machine without token or certificate is refused: it would
// be open, or readable on the way.
func New(cfg Config, runner *process.Runner) (*Server, error) {
	if cfg.Token == "" {
		return nil, errors.New("guest agent: no token: a machine without one would obey anybody")
	}
	if len(cfg.CertPEM) == 0 || len(cfg.KeyPEM) == 0 {
		return nil, errors.New("guest agent: no certificate: the published port is never served in clear text")
	}
	if cfg.FuseDir == "" {
		cfg.FuseDir = "/fuse"
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("guest agent: boot id: %w", err)
	}
	if cfg.EtcDir == "" {
		cfg.EtcDir = "/etc/fuse"
	}
	hash := rotated.Hash(cfg.Token)
	if cfg.Rotated != nil {
		hash = *cfg.Rotated
	}
	first := newIdentity(cfg.VMID, rotated.Hash(cfg.Token), cfg.CertPEM, cfg.KeyPEM)
	first.token = hash
	cfg.Token = "" // its hash is enough
	s := &Server{cfg: cfg, runner: runner, bootID: strings.TrimSpace(string(id)), used: make(chan struct{}), down: make(chan struct{})}
	s.procs = procs.New(procs.Config{Runner: runner, Memory: outputMemory()})
	s.id.Store(first)
	s.freezer = s.newFreezer()
	s.probe = health.New(cfg.FuseDir, func(ctx context.Context, argv []string, timeout time.Duration) (int, string, error) {
		return s.runProbe(ctx, fleet.ExecSpec{Argv: argv, Timeout: timeout})
	}, cfg.Log)
	s.services = s.newServices()
	return s, nil
}

// outputShare is the part of the machine's memory that the output of its
// processes may take, one in so many.
const outputShare = 8

// outputMemory is that part in bytes, within reason.
func outputMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return min(max(int64(info.Totalram)*int64(info.Unit)/outputShare, 8<<20), 128<<20)
}

// Used is closed when the first command has ended.
func (s *Server) Used() <-chan struct{} { return s.used }

// CheckCertificate says whether the published port can be served. With a wrong
// certificate every handshake fails; it never falls back to clear text.
func (s *Server) CheckCertificate() error {
	_, err := s.id.Load().cert()
	return err
}

// Serve serves the protocol on link and the published port on agent until ctx
// ends or one of them fails. It closes both.
func (s *Server) Serve(ctx context.Context, link, agent net.Listener) error {
	linkServer, agentServer := s.linkServer(), s.agentServer()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return linkServer.Serve(link) })
	group.Go(func() error {
		s.probe.Run(ctx)
		return nil
	})
	group.Go(func() error {
		s.services.Run(ctx)
		return nil
	})
	group.Go(func() error { return agentServer.ServeTLS(netutil.LimitListener(agent, maxStrangers), "", "") })
	group.Go(func() error {
		<-ctx.Done()
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		// A call that is still running after that is cut, which kills its tree.
		if linkServer.Shutdown(stopping) != nil {
			_ = linkServer.Close()
		}
		return agentServer.Close()
	})
	group.Go(func() error {
		<-ctx.Done()
		s.procs.Close()
		return nil
	})
	err := group.Wait()
	close(s.down)
	s.scrubbing.Wait()
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("guest agent: serve: %w", err)
	}
	return nil
}

func (s *Server) linkServer() *http.Server {
	opts := []connect.HandlerOption{
		connect.WithReadMaxBytes(guestwire.MaxMessage),
		connect.WithCompression("gzip", nil, nil), // the link is memory: packing only costs
	}
	mux := http.NewServeMux()
	refuse := connect.NewErrorWriter()
	serve := func(path string, service http.Handler) {
		authorize := s.authorize
		if strings.Contains(path, guestwirev1connect.FreezerName) {
			authorize = s.authorizeFreezer
		}
		mux.Handle(path, authorize(withController(service), func(w http.ResponseWriter, r *http.Request) {
			_ = refuse.Write(w, r, connect.NewError(connect.CodeUnauthenticated, errors.New(noTokenMessage)))
		}))
	}
	serve(guestwirev1connect.NewGuestHandler(&guestService{s}, opts...))
	serve(guestwirev1connect.NewFilesHandler(files.New("/", s.cfg.FuseDir, s.cfg.EtcDir), opts...))
	serve(guestwirev1connect.NewProcessesHandler(procs.Service{Table: s.procs}, opts...))
	serve(guestwirev1connect.NewFreezerHandler(&freezerService{s}, opts...))
	serve(guestwirev1connect.NewServicesHandler(supervise.Service{Supervisor: s.services}, opts...))
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           mux,
		Protocols:         protocols,
		ReadHeaderTimeout: headerTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          maxStreams,
			MaxReceiveBufferPerStream:     streamBuffer,
			MaxReceiveBufferPerConnection: maxStreams * streamBuffer, // no call may starve another
			SendPingTimeout:               guestwire.PingAfter,
			PingTimeout:                   guestwire.PingTimeout,
		},
	}
}

const noTokenMessage = "the machine's token is missing or wrong"

// authorize lets requests through that carry the machine's token.
func (s *Server) authorize(next http.Handler, refuse http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !s.id.Load().knows(token) || !found {
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

type controllerKey struct{}

// withController keeps the means to end a request's body early in its context.
func withController(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), controllerKey{}, http.NewResponseController(w))))
	})
}

// guestService implements the protocol.
type guestService struct{ *Server }

var _ guestwirev1connect.GuestHandler = (*guestService)(nil)

// Info says what runs here and since when.
func (s *guestService) Info(context.Context, *connect.Request[guestwirev1.InfoRequest]) (*connect.Response[guestwirev1.InfoResponse], error) {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("read uptime: %w", err))
	}
	res := &guestwirev1.InfoResponse{
		Version:     s.cfg.Version,
		WireVersion: guestwire.WireVersion,
		BootId:      s.bootID,
		UptimeMs:    time.Duration(up.Nano()).Milliseconds(),
		Ready:       true,
		VmId:        s.id.Load().vmID,
		Frozen:      s.freezer.Frozen(),
		Generation:  s.freezer.Generation(),
	}
	if c := s.cfg.Capture; c != nil {
		for _, r := range c.Anew {
			res.Renewed = append(res.Renewed, &guestwirev1.RenewedItem{Name: r.Name, Detail: r.Detail})
		}
	}
	for _, p := range s.cfg.BootPhases {
		res.BootPhases = append(res.BootPhases, &guestwirev1.BootPhase{Name: p.Name, DurationUs: p.Took.Microseconds()})
	}
	if h := s.probe.Verdict(); h != nil {
		res.Health = &guestwirev1.Health{State: string(h.State), SinceUnixMs: h.Since.UnixMilli(), Failures: int64(h.Failures), Message: h.Message}
	}
	return connect.NewResponse(res), nil
}

// Shutdown answers and then powers off.
func (s *guestService) Shutdown(context.Context, *connect.Request[guestwirev1.ShutdownRequest]) (*connect.Response[guestwirev1.ShutdownResponse], error) {
	if s.cfg.Shutdown == nil {
		return nil, connect.NewError(connect.CodeUnimplemented, errors.New("this guest agent is not the machine's init"))
	}
	s.cfg.Shutdown()
	return connect.NewResponse(&guestwirev1.ShutdownResponse{}), nil
}
