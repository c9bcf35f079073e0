package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/testkit"
)

// TestDevIsReadyWithItsHost starts dev on a machine whose probe takes a while:
// who waits for /ready must not be told that there is no host.
func TestDevIsReadyWithItsHost(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("XDG_CONFIG_HOME", dir)
	addr := testkit.Addr(t)
	cmd := devCmd(cli.Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
	cmd.SetArgs([]string{"--driver", "sim", "--sim", "probe=2s", "--listen", addr, "--data-dir", filepath.Join(dir, "data")})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("dev: %v", err)
		}
	}()
	client := &http.Client{Timeout: time.Minute}
	get := func(path string, into any) int {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if token, err := os.ReadFile(filepath.Join(dir, "data", "token")); err == nil {
			req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0 // not listening yet
		}
		defer func() { _ = resp.Body.Close() }()
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return resp.StatusCode
	}
	seen := ""
	testkit.Eventually(t, 2*time.Minute, "dev is ready", func() bool {
		var doc struct{ Checks map[string]string }
		status := get("/ready", &doc)
		if status == http.StatusServiceUnavailable {
			seen += doc.Checks["fleet"] + "\n"
		}
		return status == http.StatusOK
	})
	var list struct{ Hosts []struct{ ID string } }
	if get("/v1/hosts", &list); len(list.Hosts) != 1 || list.Hosts[0].ID != localHost {
		t.Errorf("ready with hosts %+v", list.Hosts)
	}
	if !strings.Contains(seen, "not registered yet") {
		t.Errorf("never unready for want of its host: %q", seen)
	}
	client.CloseIdleConnections()
}
