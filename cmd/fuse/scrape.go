package main

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"time"

	"github.com/fusevm/fuse/internal/auth"
)

// metricsServer serves what is listened for apart from the API: the metrics,
// and nothing else. Beyond loopback it wants the token, as the API does; on
// loopback a loopback name, so that no web page reads them through a name of
// its own.
func (r *process) metricsServer() *http.Server {
	srv := &http.Server{
		Handler: r.scraping(), ReadHeaderTimeout: 5 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: r.settings.MaxHeaderBytes, ErrorLog: slog.NewLogLogger(r.log.Handler(), slog.LevelDebug),
	}
	if cert := r.settings.Certificate; cert != nil && !r.settings.MetricsLocal() {
		srv.TLSConfig = &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12}
	}
	return srv
}

func (r *process) scraping() http.Handler {
	answer := r.metrics.Handler()
	gate := auth.New(auth.Config{Token: r.settings.AuthToken, AllowedCIDRs: r.settings.AllowedCIDRs})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != "/metrics" && req.URL.Path != "/" {
			http.NotFound(w, req)
			return
		}
		if r.settings.MetricsLocal() {
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
		case !r.settings.Loopback():
			// It may be an API key, which only the leader's own gate knows. The API
			// wants one for its metrics too, since it does not listen on loopback.
			req.URL.Path = "/metrics"
			r.front.ServeHTTP(w, req)
		default:
			w.Header().Set("WWW-Authenticate", `Bearer realm="fuse"`)
			http.Error(w, "the token is needed", http.StatusUnauthorized)
		}
	})
}
