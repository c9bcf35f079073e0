package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/internal/tracing/tracetest"
)

// traced is a dev server with a simulated host and a collector of traces.
type traced struct {
	url, token string
	client     *http.Client
}

func startTraced(t *testing.T) (*traced, *tracetest.Collector) {
	t.Helper()
	c := tracetest.Start(t)
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
	d := &traced{url: "http://" + testkit.Addr(t), client: &http.Client{Timeout: time.Minute}}
	cmd := devCmd(cli.Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
	cmd.SetArgs([]string{"--driver", "sim", "--listen", strings.TrimPrefix(d.url, "http://"), "--data-dir", filepath.Join(dir, "data")})
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- cmd.ExecuteContext(ctx) }()
	t.Cleanup(func() {
		d.client.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("dev: %v", err)
		}
	})
	testkit.Eventually(t, 2*time.Minute, "dev is ready", func() bool {
		if raw, err := os.ReadFile(filepath.Join(dir, "data", "token")); err == nil {
			d.token = strings.TrimSpace(string(raw))
		}
		status, _ := d.call(t, http.MethodGet, "/ready", "", "")
		return status == http.StatusOK
	})
	return d, c
}

func (d *traced) call(t *testing.T, method, path, traceparent, body string) (int, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, d.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+d.token)
	if traceparent != "" {
		req.Header.Set("traceparent", traceparent)
	}
	resp, err := d.client.Do(req)
	if err != nil {
		return 0, nil
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, raw
}

// A create and a destroy are one connected trace each, from the caller's own
// span through the server's steps to the host agent and back; a cycle is one
// too. Nothing that a caller sent as a secret is in any of them.
func TestTraces(t *testing.T) {
	d, c := startTraced(t)
	const (
		secret  = "hunter2-hunter2"
		traceA  = "0af7651916cd43dd8448eb211c80319c"
		traceB  = "0bf7651916cd43dd8448eb211c80319c"
		caller  = "b7ad6b7169203331"
		request = `{"task_id":"traced","spec":{"cpus":1},"startup_script":"echo ` + secret + `","secrets":{"KEY":"` + secret + `"},"files":{"/home/x":"aHVudGVyMi1odW50ZXIy"}}`
	)
	status, raw := d.call(t, http.MethodPost, "/v1/environments", "00-"+traceA+"-"+caller+"-01", request)
	if status != http.StatusCreated {
		t.Fatalf("create: %d %s", status, raw)
	}
	var env struct{ ID, HostID string }
	if err := json.Unmarshal(raw, &env); err != nil {
		t.Fatal(err)
	}
	if status, raw := d.call(t, http.MethodDelete, "/v1/environments/"+env.ID, "00-"+traceB+"-"+caller+"-01", ""); status != http.StatusNoContent {
		t.Fatalf("destroy: %d %s", status, raw)
	}
	want := map[string][]string{
		traceA: {
			"request /v1/environments", "create", "create credentials", "create place", "create host_create", "host CreateVM", "hostd CreateVM",
			"create settle",
		},
		traceB: {"request /v1/environments/{id}", "destroy", "host DestroyVM", "hostd DestroyVM", "destroy settle"},
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	spans, err := c.Await(ctx, func(spans []tracetest.Span) bool {
		have, ids := map[[2]string]bool{}, map[string]bool{"": true, caller: true}
		for _, s := range spans {
			have[[2]string{s.Trace, s.Name}], ids[s.ID] = true, true
		}
		// A part may be sent before the whole that it belongs to.
		if slices.ContainsFunc(spans, func(s tracetest.Span) bool { return !ids[s.Parent] }) {
			return false
		}
		for id, names := range want {
			for _, name := range names {
				if !have[[2]string{id, name}] {
					return false
				}
			}
		}
		return true
	})
	if err != nil {
		t.Errorf("parts are missing: %v", err)
		for _, s := range spans {
			t.Log(s.Trace, s.Name, s.Attributes)
		}
	}
	checkTrees(t, spans, env.ID)
	for _, s := range spans {
		for k, v := range s.Attributes {
			if strings.Contains(v, secret) || strings.Contains(v, d.token) {
				t.Errorf("%s: a secret is in %s", s.Name, k)
			}
		}
	}
}

// checkTrees holds every span to its parent: each is connected to a root, and
// those about the environment name it.
func checkTrees(t *testing.T, spans []tracetest.Span, id string) {
	t.Helper()
	const caller = "b7ad6b7169203331"
	byID := map[string]tracetest.Span{}
	for _, s := range spans {
		byID[s.ID] = s
	}
	cycles, agents := 0, 0
	for _, s := range spans {
		switch {
		case s.Parent == "" && s.Name == "reconcile cycle":
			cycles++
		case s.Parent == "" && !strings.HasPrefix(s.Name, "request "):
			t.Errorf("%s is a root", s.Name)
		case s.Parent != "" && s.Parent != caller && byID[s.Parent].Trace != s.Trace:
			t.Errorf("%s (%s) is not connected", s.Name, s.Service)
		}
		if s.Service == "fuse-hostd" {
			agents++
		}
		about := strings.HasPrefix(s.Name, "create ") || strings.HasSuffix(s.Name, "CreateVM") && s.Service == "fuse-hostd" || s.Name == "destroy"
		if about && s.Attributes["vm_id"] != id {
			t.Errorf("%s names %q", s.Name, s.Attributes["vm_id"])
		}
		if s.Name == "host CreateVM" && s.Attributes["host_id"] != localHost {
			t.Errorf("%s names host %q", s.Name, s.Attributes["host_id"])
		}
	}
	if cycles == 0 || agents == 0 {
		t.Errorf("%d cycles, %d spans of the host agent", cycles, agents)
	}
}

// What the reference page names is what a server tells when it leads, has a host
// and has made something, but for what has not happened or is not there.
func TestMetricsOfAServer(t *testing.T) {
	d, _ := startTraced(t)
	if status, raw := d.call(t, http.MethodPost, "/v1/environments", "", `{"spec":{"cpus":1}}`); status != http.StatusCreated {
		t.Fatalf("create: %d %s", status, raw)
	}
	_, raw := d.call(t, http.MethodGet, "/metrics", "", "")
	text := string(raw)
	for _, line := range []string{
		`orchestrator_leader 1`, `orchestrator_lease_left_seconds +Inf`, `orchestrator_fleet_vms{host="local",state="running"} 1`,
		`orchestrator_host_reachable{host="local"} 1`, `orchestrator_host_foreign_vms{host="local"} 0`, `orchestrator_dead_letters{kind="stuck_task"} 0`,
		`orchestrator_operations_total{op="create",result="ok"} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	page, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	absent := map[string]bool{ // what there is nothing to tell of
		"store_pool_connections": true, "store_pool_waits_total": true, "store_pool_wait_seconds_total": true, "fleet_snapshots": true,
		"host_unreachable_since_timestamp_seconds": true, "reconcile_paused_since_timestamp_seconds": true,
		"webhook_deliveries_total": true, "webhook_oldest_pending_timestamp_seconds": true,
		// of the first cycle that saw the host
		"host_looks_total": true, "host_tracked_vms": true, "host_listed_vms": true, "host_seen_complete": true, "host_look_timestamp_seconds": true,
		"event_oldest_timestamp_seconds": true,
		// of the first playground
		"playguard_marquees": true, "playguard_playgrounds": true, "playguard_passes_total": true, "playguard_acts_total": true, "playguard_refusals_total": true, "playguard_operations_total": true, "playguard_branches_total": true,
		"playguard_sweep": true, "playguard_notifications_total": true,
		// of the first round that asks hosts what their machines take
		"usage_cpu_seconds_total": true, "usage_disk_bytes_total": true, "usage_network_bytes_total": true, "usage_held_bytes": true, "usage_machines": true,
	}
	for _, row := range regexp.MustCompile("(?m)^\\| `orchestrator_([a-z_]+)`").FindAllStringSubmatch(string(page), -1) {
		if !absent[row[1]] && !strings.Contains(text, "# TYPE orchestrator_"+row[1]+" ") {
			t.Errorf("no %s", row[1])
		}
	}
}
