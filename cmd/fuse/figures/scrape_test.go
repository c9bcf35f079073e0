package figures

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
		"both, with an API key":         {"0.0.0.0:1", "0.0.0.0:2", "10.0.0.1:2", "a-key", "/", 200},
		"both, another path":            {"0.0.0.0:1", "0.0.0.0:2", "10.0.0.1:2", token, "/v1/hosts", 404},
	} {
		t.Run(name, func(t *testing.T) {
			api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/metrics" {
					t.Errorf("the API is asked for %s", r.URL.Path)
				}
				if r.Header.Get("Authorization") != "Bearer a-key" {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				_, _ = io.WriteString(w, "orchestrator_by_key 1")
			})
			scraped := Scraped{
				Settings: config.Server{Listen: tt.listen, MetricsListen: tt.metrics, AuthToken: token},
				Metrics:  metrics.New("test"), API: api, Log: slog.New(slog.DiscardHandler),
			}
			req := httptest.NewRequest(http.MethodGet, "http://"+tt.host+tt.path, nil)
			if tt.token != "" {
				req.Header.Set("Authorization", "Bearer "+tt.token)
			}
			w := httptest.NewRecorder()
			scraped.Server().Handler.ServeHTTP(w, req)
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
