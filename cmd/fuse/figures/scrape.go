package figures

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/metrics"
)

// Scraped is a second listener: the metrics, and nothing else. Beyond loopback
// it wants the token, as the API does; on loopback a loopback name, so that no
// web page reads them through a name of its own.
type Scraped struct {
	Settings config.Server
	Metrics  *metrics.Metrics
	// API answers who shows an API key, which only the leader's own gate knows.
	API http.Handler
	Log *slog.Logger
}

// Server makes its server.
func (r Scraped) Server() *http.Server {
	srv := &http.Server{
		Handler: r.handler(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: r.Settings.MaxHeaderBytes, ErrorLog: slog.NewLogLogger(r.Log.Handler(), slog.LevelDebug),
	}
	if cert := r.Settings.Certificate; cert != nil && !r.Settings.MetricsLocal() {
		srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12}
	}
	return srv
}

func (r Scraped) handler() http.Handler {
	answer := r.Metrics.Handler()
	gate := auth.New(auth.Config{Token: r.Settings.AuthToken, AllowedCIDRs: r.Settings.AllowedCIDRs})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/metrics" && req.URL.Path != "/" {
			http.NotFound(w, req)
			return
		}
		if r.Settings.MetricsLocal() {
			if err := auth.LocalName(req); err != nil {
				http.Error(w, "this name may not be used here", http.StatusForbidden)
				return
			}
			answer.ServeHTTP(w, req)
			return
		}
		if err := gate.CheckAddress(req); err != nil {
			http.Error(w, "this address may not be used", http.StatusForbidden)
			return
		}
		switch _, err := gate.Authenticate(req); {
		case err == nil:
			answer.ServeHTTP(w, req)
		case !r.Settings.Loopback():
			// The API wants a token for its metrics too, since it does not listen on
			// loopback.
			req.URL.Path = "/metrics"
			r.API.ServeHTTP(w, req)
		default:
			w.Header().Set("WWW-Authenticate", `Bearer realm="fuse"`)
			http.Error(w, "the token is needed", http.StatusUnauthorized)
		}
	})
}
