package hostwire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// ServerConfig says where and what a host agent serves.
type ServerConfig struct {
	// Addr is unix:///path, host:port, or either of http:// and https://
	// before host:port. Without a scheme TLS is used unless the host is
	// loopback; plain HTTP anywhere else is refused.
	Addr    string
	Handler http.Handler
	// CertDir keeps the self-signed certificate.
	CertDir string
	Logger  *slog.Logger
	// Grace is how long open calls may go on once Serve is to end; 5 s.
	Grace time.Duration
}

// Server serves a host agent's handler over HTTP/2.
type Server struct {
	cfg  ServerConfig
	l    net.Listener
	http *http.Server
	cert string
	url  string
}

// maxStreams bounds the calls at a time of one connection.
const maxStreams = 2000

// Listen opens the address; calls are taken once Serve runs.
func Listen(cfg ServerConfig) (*Server, error) {
	if cfg.Grace <= 0 {
		cfg.Grace = 5 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, http: newHTTPServer(cfg)}
	listen := s.listenTCP
	if path, ok := strings.CutPrefix(cfg.Addr, "unix://"); ok {
		listen = func() error { return s.listenUnix(path) }
	}
	if err := listen(); err != nil {
		return nil, err
	}
	return s, nil
}

func newHTTPServer(cfg ServerConfig) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true) // for /livez and /metrics from ordinary tools
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: cfg.Handler, Protocols: &protocols,
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 5 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams,
			// A command that does not read its input holds this much of the
			// connection's window, so a few of them do not stop the others.
			MaxReceiveBufferPerStream:     128 << 10,
			MaxReceiveBufferPerConnection: 4<<20 - 1,
			SendPingTimeout:               30 * time.Second,
			PingTimeout:                   15 * time.Second,
			WriteByteTimeout:              time.Minute,
		},
	}
}

func (s *Server) listenUnix(path string) error {
	// The kernel's limit is 108 bytes with the final zero.
	if path == "" || len(path) > 107 {
		return fleet.Errorf(fleet.CodeInvalidArgument, "unix socket path %.120q is empty or too long", path).
			With(fleet.DetailLimit, "107 bytes").
			With(fleet.DetailRemedy, "use a shorter data directory")
	}
	if err := removeStale(path); err != nil {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return errors.Join(fmt.Errorf("protect the socket: %w", err), l.Close())
	}
	s.l, s.url = l, "unix://"+path
	return nil
}

// removeStale removes a socket that nobody listens on any more.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at the socket: %w", err)
	}
	if info.Mode().Type() != os.ModeSocket {
		return fleet.Errorf(fleet.CodeConflict, "%s is there and is no socket", path)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if c, err := new(net.Dialer).DialContext(ctx, "unix", path); err == nil {
		return errors.Join(fleet.Errorf(fleet.CodeConflict, "another process listens on %s", path), c.Close())
	}
	return os.Remove(path)
}

func (s *Server) listenTCP() error {
	scheme, hostport, ok := strings.Cut(s.cfg.Addr, "://")
	if !ok {
		scheme, hostport = "", s.cfg.Addr
	}
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		return fleet.Errorf(fleet.CodeInvalidArgument, "listen address %.120q is not host:port: %w", s.cfg.Addr, err)
	}
	plain := IsLoopback(host)
	switch {
	case scheme == "https":
		plain = false
	case scheme == "http" && !plain:
		return fleet.Errorf(fleet.CodeInvalidArgument, "plain http on %s would send the token in clear", hostport).
			With(fleet.DetailLimit, "loopback and unix sockets").
			With(fleet.DetailRemedy, "listen on https://"+hostport)
	case scheme != "" && scheme != "http":
		return fleet.Errorf(fleet.CodeInvalidArgument, "listen address %.120q has an unknown scheme", s.cfg.Addr).
			With(fleet.DetailLimit, "unix://, http://, https://")
	}
	var config *tls.Config
	if !plain {
		cert, err := LoadOrCreateCert(s.cfg.CertDir)
		if err != nil {
			return err
		}
		s.cert = Fingerprint(cert)
		config = &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}}
	}
	l, err := net.Listen("tcp", hostport)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.l, s.http.TLSConfig = l, config
	s.url = (&url.URL{Scheme: map[bool]string{true: "http", false: "https"}[plain], Host: l.Addr().String()}).String()
	return nil
}

// IsLoopback reports whether a host of a URL or address means its own machine.
func IsLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// URL is the address as a registration takes it.
func (s *Server) URL() string { return s.url }

// CertSHA256 is the certificate's fingerprint, or "" without TLS.
func (s *Server) CertSHA256() string { return s.cert }

// Serve answers calls until ctx ends, then lets open ones finish within the
// grace and cuts off the rest. VMs are not concerned.
func (s *Server) Serve(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		if s.http.TLSConfig != nil {
			done <- s.http.ServeTLS(s.l, "", "")
			return
		}
		done <- s.http.Serve(s.l)
	}()
	select {
	case err := <-done:
		return fmt.Errorf("serve hostwire: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.Grace)
	defer cancel()
	err := s.http.Shutdown(grace)
	if err != nil {
		err = s.http.Close()
	}
	if serr := <-done; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}
