package main

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/metrics"
)

// Nothing that other machines can reach answers without the token, whatever
// name they use; on loopback a loopback name is enough.
func TestMetricsListener(t *testing.T) {
	const token = "the-token-of-the-server"
	for name, tt := range map[string]struct {
		listen, metrics string
		host, token     string
		path            string
		want            int
	}{
		"on loopback":                   {"127.0.0.1:1", "127.0.0.1:2", "localhost:2", "", "/metrics", 200},
		"on loopback, another path":     {"127.0.0.1:1", "127.0.0.1:2", "localhost:2", "", "/v1/environments", 404},
		"on loopback, a foreign name":   {"127.0.0.1:1", "127.0.0.1:2", "evil.example", "", "/metrics", 403},
		"beyond it, without a token":    {"127.0.0.1:1", "0.0.0.0:2", "localhost:2", "", "/metrics", 401},
		"beyond it, with a wrong token": {"127.0.0.1:1", "0.0.0.0:2", "10.0.0.1:2", "guessed", "/metrics", 401},
		"beyond it, with the token":     {"127.0.0.1:1", "0.0.0.0:2", "10.0.0.1:2", token, "/metrics", 200},
		"both, without a token":         {"0.0.0.0:1", "0.0.0.0:2", "localhost:2", "", "/metrics", 401},
		"both, with the token":          {"0.0.0.0:1", "0.0.0.0:2", "10.0.0.1:2", token, "/metrics", 200},
		"both, another path":            {"0.0.0.0:1", "0.0.0.0:2", "10.0.0.1:2", token, "/v1/hosts", 404},
	} {
		t.Run(name, func(t *testing.T) {
			s := config.Server{Listen: strings.Replace(tt.listen, ":1", ":0", 1), AuthToken: token}
			r, err := newProcess(t.Context(), s, metrics.New("test"), newSecret(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := r.listener.Close(); err != nil {
					t.Error(err)
				}
			}()
			r.settings.MetricsListen = tt.metrics
			req := httptest.NewRequest(http.MethodGet, "http://"+tt.host+tt.path, nil)
			if tt.token != "" {
				req.Header.Set("Authorization", "Bearer "+tt.token)
			}
			w := httptest.NewRecorder()
			r.metricsServer().Handler.ServeHTTP(w, req)
			body, err := io.ReadAll(w.Result().Body)
			if err != nil {
				t.Fatal(err)
			}
			if w.Code != tt.want || strings.Contains(string(body), "orchestrator_") != (tt.want == http.StatusOK) {
				t.Errorf("%d, want %d: %.100s", w.Code, tt.want, body)
			}
		})
	}
}
