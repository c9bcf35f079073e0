package guestd

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// waitForGuest is for what takes a moment on a machine that is not busy.
const waitForGuest = time.Minute

// agentClient trusts the machine's certificate and no other.
func (g *guest) agentClient(t *testing.T) *http.Client {
	t.Helper()
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(g.certPEM) {
		t.Fatal("no certificate")
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: waitForGuest}
}

func (g *guest) get(t *testing.T, path, token string) (int, map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+g.agent+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := g.agentClient(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var body map[string]any
	if err := json.NewDecoder(res.Body).Decode(&body); err != nil && res.Header.Get("Content-Type") == "application/json" {
		t.Fatal(err)
	}
	return res.StatusCode, body
}

func TestAgentPort(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	if code, body := g.get(t, "/health", ""); code != 200 || !cmp.Equal(body, map[string]any{"status": "ok", "vm_id": "vm-1"}) {
		t.Errorf("health: %d %v", code, body)
	}
	for _, token := range []string{"", "wrong"} {
		code, body := g.get(t, "/v1/info", token)
		if code != 401 || !strings.Contains(body["error"].(map[string]any)["message"].(string), "token") {
			t.Errorf("info with token %q: %d %v", token, code, body)
		}
	}
	want := map[string]any{"vm_id": "vm-1", "manifest_bytes": 0., "secret_count": 0., "gateway": "", "tls": true}
	if code, body := g.get(t, "/v1/info", testToken); code != 200 || !cmp.Equal(body, want) {
		t.Errorf("info: %d %s", code, cmp.Diff(want, body))
	}
	if err := os.MkdirAll(g.fuseDir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{"manifest.json": `{"version":"1"}`, "secrets.json": `{"A":"x","B":"y"}`} {
		if err := os.WriteFile(filepath.Join(g.fuseDir, name), []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want["manifest_bytes"], want["secret_count"] = 15., 2.
	if code, body := g.get(t, "/v1/info", testToken); code != 200 || !cmp.Equal(body, want) {
		t.Errorf("info: %d %s", code, cmp.Diff(want, body))
	}
	if err := os.WriteFile(filepath.Join(g.fuseDir, "secrets.json"), []byte(`{"A":"hunter2`), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, body := g.get(t, "/v1/info", testToken); code != 500 || strings.Contains(body["error"].(map[string]any)["message"].(string), "hunter2") {
		t.Errorf("info with broken secrets: %d %v", code, body)
	}
	if code, _ := g.get(t, "/v1/other", testToken); code != 404 {
		t.Errorf("unknown path: %d", code)
	}
}

// The protocol of the link is not served on the published port, and nothing is
// served there in clear text.
func TestAgentPortIsNarrow(t *testing.T) {
	t.Parallel()
	g := startGuest(t)
	if code, _ := g.get(t, "/fuse.guest.v1.Guest/Info", testToken); code != 404 {
		t.Errorf("the protocol on the published port: %d", code)
	}
	conn, err := net.Dial("tcp", g.agent)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(waitForGuest)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || strings.Contains(string(answer), "vm-1") || !strings.HasPrefix(string(answer), "HTTP/1.0 400") {
		t.Errorf("clear text: %q, %v", answer, err)
	}
}
