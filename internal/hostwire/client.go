package hostwire

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// ClientConfig says how to reach a host agent.
type ClientConfig struct {
	// URL is unix:///path, http://host:port (loopback only) or
	// https://host:port, the last two with a path before that of the calls if
	// something in between wants one.
	URL string
	// CertSHA256 pins the host's certificate; without it, https needs one
	// that the system trusts.
	CertSHA256  string
	DialTimeout time.Duration // 10 s
}

// NewTransport returns a transport that keeps one HTTP/2 connection to the
// host, and the base URL of its calls. Nothing is dialled yet.
func NewTransport(cfg ClientConfig) (*http.Transport, string, error) {
	if cfg.DialTimeout <= 0 {
		cfg.DialTimeout = 10 * time.Second
	}
	dialer := &net.Dialer{Timeout: cfg.DialTimeout, KeepAlive: 15 * time.Second}
	var protocols http.Protocols
	t := &http.Transport{
		Protocols: &protocols, DialContext: dialer.DialContext,
		TLSHandshakeTimeout: cfg.DialTimeout, IdleConnTimeout: 5 * time.Minute,
		MaxResponseHeaderBytes: 64 << 10, DisableCompression: true,
		HTTP2: &http.HTTP2Config{
			StrictMaxConcurrentRequests: true,
			MaxReceiveBufferPerStream:   512 << 10,
			// A host that is gone without a word is noticed within 15 s.
			SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second,
			WriteByteTimeout: 30 * time.Second,
		},
	}
	if path, ok := strings.CutPrefix(cfg.URL, "unix://"); ok && path != "" {
		protocols.SetUnencryptedHTTP2(true)
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		}
		return t, "http://hostd", nil
	}
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" {
		return nil, "", badURL(cfg.URL)
	}
	switch {
	case u.Scheme == "https":
		protocols.SetHTTP2(true)
		if t.TLSClientConfig, err = clientTLS(cfg.CertSHA256); err != nil {
			return nil, "", err
		}
	case u.Scheme == "http" && IsLoopback(u.Hostname()):
		protocols.SetUnencryptedHTTP2(true)
	case u.Scheme == "http":
		return nil, "", fleet.Errorf(fleet.CodeInvalidArgument, "plain http to %s would send the token in clear", u.Host).
			With(fleet.DetailLimit, "loopback and unix sockets").
			With(fleet.DetailRemedy, "use https and the certificate fingerprint that the host agent prints")
	default:
		return nil, "", badURL(cfg.URL)
	}
	return t, u.Scheme + "://" + u.Host + strings.TrimRight(u.EscapedPath(), "/"), nil
}

func clientTLS(pin string) (*tls.Config, error) {
	if pin == "" {
		return &tls.Config{MinVersion: tls.VersionTLS13}, nil
	}
	return pinned(pin)
}

func badURL(raw string) error {
	shown := raw
	if u, err := url.Parse(raw); err == nil {
		shown = u.Redacted()
	}
	return fleet.Errorf(fleet.CodeInvalidArgument, "host url %.200q cannot be used", shown).
		With(fleet.DetailLimit, "unix:///path, http://loopback:port[/path] or https://host:port[/path]").
		With(fleet.DetailRemedy, "take the url that the host agent prints when it starts")
}
