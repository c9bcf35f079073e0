package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/api/web"
	"github.com/fusevm/fuse/internal/auth"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestops"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/state"
)

func (w *world) pages(query string) (ids []string, pages int) {
	w.t.Helper()
	cursor := ""
	for {
		rec := w.call("GET", "/v1/environments?"+query+"&cursor="+cursor, "")
		w.want(rec, http.StatusOK, "")
		page := decodeInto[gen.EnvironmentList](w.t, rec)
		pages++
		for _, env := range page.Environments {
			ids = append(ids, env.ID)
		}
		if cursor = page.NextCursor; cursor == "" {
			return ids, pages
		}
	}
}

func TestPages(t *testing.T) {
	w := newWorld(t)
	if rec := w.call("GET", "/v1/environments", ""); strings.TrimSpace(rec.Body.String()) != `{"environments":[]}` {
		t.Errorf("an empty list is %s", rec.Body)
	}
	for i := range 401 {
		w.add(fmt.Sprintf("t%03d", (i*7)%401))
	}
	for _, c := range []struct {
		query string
		first int
		pages int
	}{
		{"", 50, 9}, {"limit=", 50, 9}, {"limit=0", 50, 9}, {"limit=-3", 50, 9}, {"limit=x", 50, 9}, {"limit=1e2", 50, 9},
		{"limit=200", 200, 3}, {"limit=201", 200, 3}, {"limit=999999999999999999999", 50, 9}, {"limit=100", 100, 5}, {"limit=7", 7, 58},
	} {
		page := decodeInto[gen.EnvironmentList](t, w.call("GET", "/v1/environments?"+c.query, ""))
		ids, pages := w.pages(c.query)
		if len(page.Environments) != c.first || pages != c.pages || len(ids) != 401 || !slices.IsSorted(ids) || len(slices.Compact(ids)) != 401 {
			t.Errorf("%q: first page %d, %d pages, %d ids", c.query, len(page.Environments), pages, len(ids))
		}
	}
	for _, bad := range []string{"x", "!!", "e30", "eyJpZCI6IiJ9", "eyJpZCI6MX0", strings.Repeat("A", 2000), "eyJpZCI6ImEifQ=="} {
		for _, path := range []string{"/v1/environments", "/v1/hosts"} {
			w.want(w.call("GET", path+"?cursor="+bad, ""), http.StatusBadRequest, fleet.CodeInvalidArgument)
		}
	}
	after, err := web.DecodeCursor(web.EncodeCursor("fuse-ü/\""))
	if err != nil || after != "fuse-ü/\"" {
		t.Errorf("cursor round trip: %q %v", after, err)
	}
}

// Whatever is created or destroyed while a caller pages through, what was there
// all the time is listed exactly once.
func TestPagesUnderChange(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		stay := rapid.SliceOfNDistinct(rapid.StringMatching(`s[a-z]{1,3}`), 1, 30, rapid.ID).Draw(rt, "stay")
		for _, task := range stay {
			w.add(task)
		}
		var seen []string
		cursor := ""
		for step := 0; ; step++ {
			page := decodeInto[gen.EnvironmentList](t, w.call("GET", "/v1/environments?limit=3&cursor="+cursor, ""))
			for _, env := range page.Environments {
				seen = append(seen, env.TaskID)
			}
			if cursor = page.NextCursor; cursor == "" {
				break
			}
			task := rapid.StringMatching(`[a-rt-z][a-z]{0,2}`).Draw(rt, "new")
			_ = w.store.View(func(tx *state.ReadTx) error {
				if _, there := tx.VMs().Get("fuse-" + task); there {
					defer w.remove("fuse-" + task)
				} else {
					defer w.add(task)
				}
				return nil
			})
		}
		for _, task := range stay {
			if n := len(slices.DeleteFunc(slices.Clone(seen), func(s string) bool { return s != task })); n != 1 {
				rt.Fatalf("%s was listed %d times in %v", task, n, seen)
			}
		}
	})
}

func TestFilters(t *testing.T) {
	w := newWorld(t)
	w.addHosts("h1", "h2")
	for i := range 6 {
		vm := w.add(fmt.Sprintf("t%d", i))
		w.update(func(tx *state.Tx) error {
			row := *vm
			row.HostID = []string{"h1", "h2"}[i%2]
			return tx.PutVM(row)
		})
	}
	w.setState("fuse-t1", fleet.VMStateDraining)
	for query, want := range map[string][]string{
		"task_id=t3":                 {"fuse-t3"},
		"task_id=none":               nil,
		"host_id=h1":                 {"fuse-t0", "fuse-t2", "fuse-t4"},
		"state=draining":             {"fuse-t1"},
		"state=nonsense":             nil,
		"state=running&host_id=h2":   {"fuse-t3", "fuse-t5"},
		"task_id=t1&state=running":   nil,
		"task_id=t1&host_id=h2":      {"fuse-t1"},
		"host_id=h1&limit=1":         {"fuse-t0", "fuse-t2", "fuse-t4"},
		"task_id=&state=&host_id=h1": {"fuse-t0", "fuse-t2", "fuse-t4"},
	} {
		if got, _ := w.pages(query); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", query, got, want)
		}
	}
}

// What a list shows is what there is, also right after a change.
func TestListsAreNeverStale(t *testing.T) {
	w := newWorld(t)
	w.add("a")
	uid := decodeInto[gen.Environment](t, w.call("GET", "/v1/environments/fuse-a", "")).UID
	w.setState("fuse-a", fleet.VMStateDraining)
	if env := decodeInto[gen.EnvironmentList](t, w.call("GET", "/v1/environments", "")).Environments[0]; env.State != "draining" || env.UID != uid {
		t.Errorf("%+v", env)
	}
	w.remove("fuse-a")
	w.want(w.call("GET", "/v1/environments/fuse-a", ""), http.StatusNotFound, fleet.CodeNotFound)
	w.add("a")
	if env := decodeInto[gen.Environment](t, w.call("GET", "/v1/environments/fuse-a", "")); env.State != "running" || env.UID == uid {
		t.Errorf("%+v", env)
	}
}

func TestCreateCarriesEverything(t *testing.T) {
	w := newWorld(t)
	w.addHosts("h1")
	rec := w.call("POST", "/v1/environments", `{
		"task_id":"Job.1_a-B","spec":{"cpus":2,"ram_mb":1024,"storage_gb":8,"region":"eu","arch":"x86_64","max_runtime_seconds":60,
		"idle_timeout_seconds":120,"image":"minimal","gpus":1,"gpu_kind":"h100","gpu_profile":"1g.10gb","host_id":"h1","labels":{"a":"b"},"huge_pages":true},
		"manifest_inline":"e30=","secrets":{"K":"V"},"startup_script":"echo","startup_script_timeout_seconds":5,"gateway_url":"u","gateway_token":"g",
		"expose":[{"port":80,"as":"web","protocol":"tcp"}],"healthcheck":{"http":{"port":8080,"path":"/h"},"interval_seconds":3,"timeout_seconds":2,"retries":1,"start_period_seconds":4},
		"files":{"/a":"aGk="},"desktop":{"width":800,"height":600,"wm":"x"},"seed_snapshot_id":"s","egress":{"mode":"proxy","provider":"p","protocol":"q"},"hitl":{"a":1}}`)
	w.want(rec, http.StatusCreated, "")
	want := lifecycle.CreateRequest{
		TaskID: "Job.1_a-B", Owner: "master", Actor: "user:master",
		Spec: fleet.Spec{
			CPUs: 2, RamMB: 1024, StorageGB: 8, Region: "eu", Arch: "x86_64", MaxRuntime: time.Minute, IdleTimeout: 2 * time.Minute, Image: "minimal",
			GPUs: 1, GPUKind: "h100", GPUProfile: "1g.10gb", HostID: "h1", Labels: map[string]string{"a": "b"}, HugePages: true, SeedSnapshotID: "s",
			Egress: fleet.EgressSpec{Mode: "proxy", Provider: "p", Protocol: "q"}, Hitl: &fleet.HitlSpec{Policy: map[string]any{"a": 1.0}},
		},
		Boot: fleet.BootOptions{
			StartupScript: "echo", StartupScriptTimeout: 5 * time.Second, GatewayURL: "u", GatewayToken: "g", Manifest: []byte("{}"),
			Secrets: map[string]string{"K": "V"}, Files: map[string][]byte{"/a": []byte("hi")},
			Expose:      []fleet.ExposeSpec{{Port: 80, As: "web", Protocol: "tcp"}},
			Healthcheck: &fleet.HealthcheckSpec{HTTP: &fleet.HealthcheckHTTP{Port: 8080, Path: "/h"}, IntervalSeconds: 3, TimeoutSeconds: 2, Retries: 1, StartPeriodSeconds: 4},
			Desktop:     &fleet.DesktopSpec{Width: 800, Height: 600, WM: "x"},
		},
	}
	if diff := cmp.Diff(want, w.envs.creates[0]); diff != "" {
		t.Error(diff)
	}
	env := decodeInto[gen.Environment](t, rec)
	if env.ID != "fuse-Job.1_a-B" || env.State != "running" || env.Owner != "master" || env.URL == "" || env.Spec.MaxRuntimeSeconds != 60 ||
		env.Boot.Mode != "cold" || env.Boot.Steps[0].TookMs != 1.5 || env.Placement.HostID != "h1" {
		t.Errorf("%+v", env)
	}
	if got := rec.Header().Get("Warning"); got != "" {
		t.Errorf("a warning: %q", got)
	}
	if loc := rec.Header().Get("Location"); loc != "/v1/environments/fuse-Job.1_a-B" {
		t.Errorf("Location %q", loc)
	}
	if strings.Contains(rec.Body.String(), `"V"`) || strings.Contains(w.log.String(), "aGk=") {
		t.Error("a secret or a body comes back, or is logged")
	}
	for _, body := range []string{`{"desktop":{}}`, `{"healthcheck":{}}`, `{"egress":{}}`, `{"hitl":{}}`, `{}`} {
		w.call("POST", "/v1/environments", body) // present is not absent, even when empty
	}
	if c := w.envs.creates; c[1].Boot.Desktop == nil || c[2].Boot.Healthcheck == nil || c[4].Spec.Hitl == nil || c[5].Boot.Desktop != nil || c[5].Spec.Hitl != nil {
		t.Error("empty objects are taken for absent ones")
	}
}

func TestCreateAsync(t *testing.T) {
	w := newWorld(t)
	for i, prefer := range []string{"respond-async", "wait=5, respond-async", "Respond-Async; foo=bar", "handling=lenient,respond-async"} {
		rec := w.call("POST", "/v1/environments", fmt.Sprintf(`{"task_id":"a%d"}`, i), "Prefer", prefer)
		w.want(rec, http.StatusAccepted, "")
		if env := decodeInto[gen.Environment](t, rec); env.State != "provisioning" || rec.Header().Get("Location") != "/v1/environments/"+env.ID {
			t.Errorf("%q: %+v", prefer, env)
		}
	}
	for i, prefer := range []string{"", "respond", "return=minimal", `x="respond-async`} {
		w.want(w.call("POST", "/v1/environments", fmt.Sprintf(`{"task_id":"s%d"}`, i), "Prefer", prefer), http.StatusCreated, "")
	}
}

func TestDestroy(t *testing.T) {
	w := newWorld(t, func(c *Config, _ *auth.Config, _ *state.Config) { c.DestroyWait = time.Second })
	w.want(w.call("DELETE", "/v1/environments/fuse-a", ""), http.StatusNotFound, fleet.CodeNotFound)
	w.add("a")
	for range 2 {
		rec := w.call("DELETE", "/v1/environments/fuse-a", "")
		w.want(rec, http.StatusNoContent, "")
		if rec.Body.Len() != 0 {
			t.Errorf("204 with %q", rec.Body)
		}
	}
	e := w.want(w.call("GET", "/v1/environments/fuse-a", ""), http.StatusNotFound, fleet.CodeNotFound)
	if !strings.Contains(e.Details[fleet.DetailReason], fleet.RuleManualDestroy) || e.Details["ended_at"] == "" || e.Details["uid"] == "" {
		t.Errorf("details %v do not tell the end", e.Details)
	}

	w.add("b")
	w.envs.destroy = func(ctx context.Context, id string, reason fleet.Reason) error {
		if reason.Actor != "user:master" || !strings.Contains(reason.Evidence, "req_") {
			t.Errorf("reason %v", reason)
		}
		w.update(func(tx *state.Tx) error {
			vm, _ := tx.VMs().Get(id)
			row := *vm
			row.End = &reason
			return putState(tx, row, fleet.VMStateDestroying)
		})
		<-ctx.Done() // the host does not answer
		return &lifecycle.PendingError{VMID: id, HostID: "h1"}
	}
	rec := w.call("DELETE", "/v1/environments/fuse-b", "")
	w.want(rec, http.StatusAccepted, "")
	if env := decodeInto[gen.Environment](t, rec); env.State != "destroying" || env.Reason.Rule != fleet.RuleManualDestroy || rec.Header().Get("Location") == "" {
		t.Errorf("%+v", env)
	}
	w.envs.destroy = func(context.Context, string, fleet.Reason) error { return &lifecycle.PendingError{VMID: "fuse-c"} }
	w.want(w.call("DELETE", "/v1/environments/fuse-c", ""), http.StatusNoContent, "") // it ended meanwhile
}

func TestDrainAndComplete(t *testing.T) {
	w := newWorld(t)
	for _, action := range []string{"drain", "complete"} {
		w.want(w.call("POST", "/v1/environments/none?action="+action, ""), http.StatusNotFound, fleet.CodeNotFound)
		w.add(action)
		rec := w.call("POST", "/v1/environments/fuse-"+action+"?action="+action, "{}")
		w.want(rec, http.StatusOK, "")
		want := map[string]string{"drain": "draining", "complete": "destroying"}[action]
		if env := decodeInto[gen.Environment](t, rec); env.State != want {
			t.Errorf("%s: %+v", action, env)
		}
		w.want(w.call("POST", "/v1/environments/fuse-"+action+"?action="+action, ""), http.StatusConflict, fleet.CodeConflict)
	}
	w.add("ended")
	w.remove("fuse-ended")
	w.envs.verb = func(context.Context, string, string) (*fleet.VM, error) { return nil, nil }
	rec := w.call("POST", "/v1/environments/fuse-ended?action=complete", "")
	w.want(rec, http.StatusOK, "")
	if env := decodeInto[gen.Environment](t, rec); env.State != "destroyed" || env.Reason == nil {
		t.Errorf("%+v", env)
	}
	w.want(w.call("POST", "/v1/environments/never?action=complete", ""), http.StatusNotFound, fleet.CodeNotFound)
}

func TestExec(t *testing.T) {
	w := newWorld(t)
	rec := w.call("POST", "/v1/environments/fuse-a?action=exec", `{"cmd":["ls","-l"],"env":{"A":"1"},"cwd":"/","user":"0:0","stdin_b64":"aGk=","timeout_ms":1500}`)
	w.want(rec, http.StatusOK, "")
	want := guestops.ExecRequest{
		Actor: "user:master", Cmd: []string{"ls", "-l"}, Env: map[string]string{"A": "1"}, Cwd: "/", User: "0:0", Stdin: []byte("hi"), Timeout: 1500 * time.Millisecond,
	}
	if diff := cmp.Diff(want, w.guests.calls[0]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(gen.ExecResult{Stdout: "out\n", Stderr: "err\n"}, decodeInto[gen.ExecResult](t, rec)); diff != "" {
		t.Error(diff)
	}
	raw := []byte{0xff, 0, 'a', '\n'}
	w.guests.exec = func(_ context.Context, _ string, req guestops.ExecRequest) (provider.ExecResult, error) {
		if req.Timeout > 0 && req.Timeout < 0 {
			t.Error("overflow")
		}
		return provider.ExecResult{
			ExecStatus: fleet.ExecStatus{ExitCode: 124, TimedOut: true, Signal: "KILL"}, Stdout: raw, Stderr: []byte("ü\x00"), Truncated: true,
		}, nil
	}
	for _, timeout := range []string{"0", "9223372036854775807", "-9223372036854775808"} {
		rec = w.call("POST", "/v1/environments/fuse-a?action=exec", `{"shell":"x","timeout_ms":`+timeout+`}`)
		w.want(rec, http.StatusOK, "")
	}
	res := decodeInto[gen.ExecResult](t, rec)
	if res.ExitCode != 124 || !res.TimedOut || !res.Truncated || res.Signal != "KILL" || string(res.StdoutB64) != string(raw) || res.StderrB64 != nil || res.Stderr != "ü\x00" {
		t.Errorf("%+v", res)
	}
	if last := w.guests.calls[2].Timeout; last < 0 {
		t.Errorf("a timeout that is too long became %s", last)
	}
}

func TestLogs(t *testing.T) {
	w := newWorld(t)
	vm := w.add("a")
	w.want(w.call("GET", "/v1/environments/none/logs", ""), http.StatusNotFound, fleet.CodeNotFound)
	w.want(w.call("GET", "/v1/environments/fuse-a/logs?source=console", ""), http.StatusBadRequest, fleet.CodeInvalidArgument)
	w.want(w.call("GET", "/v1/environments/fuse-a/logs", ""), http.StatusNotFound, fleet.CodeNotFound)
	w.update(func(tx *state.Tx) error {
		return tx.PutStartupLog(fleet.StartupLog{UID: vm.UID, ExitCode: 3, Truncated: true, Output: []byte("one\ntwo\xff"), EndedAt: tx.Now()})
	})
	check := func() {
		t.Helper()
		rec := w.call("GET", "/v1/environments/fuse-a/logs?source=startup", "")
		w.want(rec, http.StatusOK, "")
		if rec.Body.String() != "one\ntwo\xff" || rec.Header().Get("Fuse-Exit-Code") != "3" || rec.Header().Get("Fuse-Truncated") != "true" {
			t.Errorf("%q %v", rec.Body, rec.Header())
		}
	}
	check()
	w.remove("fuse-a")
	check() // after the end too
}

func TestIdempotencyKeys(t *testing.T) {
	w := newWorld(t)
	key := func(k string) []string { return []string{"Idempotency-Key", k} }
	first := w.call("POST", "/v1/environments", `{"task_id":"a"}`, key("k1")...)
	w.want(first, http.StatusCreated, "")
	again := w.call("POST", "/v1/environments", `{"task_id":"a"}`, key("k1")...)
	w.want(again, http.StatusCreated, "")
	if again.Header().Get("Idempotency-Replayed") != "true" || first.Header().Get("Idempotency-Replayed") != "" || again.Header().Get("Location") == "" {
		t.Errorf("headers %v and %v", first.Header(), again.Header())
	}
	if a, b := decodeInto[gen.Environment](t, first), decodeInto[gen.Environment](t, again); a.UID != b.UID || len(w.envs.creates) != 1 {
		t.Errorf("%s and %s by %d creates", a.UID, b.UID, len(w.envs.creates))
	}
	w.want(w.call("POST", "/v1/environments", `{"task_id":"b"}`, key("k1")...), http.StatusUnprocessableEntity, fleet.CodeConflict)
	w.want(w.call("DELETE", "/v1/environments/fuse-a", "", key("k1")...), http.StatusUnprocessableEntity, fleet.CodeConflict)
	for _, bad := range []string{strings.Repeat("x", 201), "tab\there", "ü"} {
		w.want(w.call("DELETE", "/v1/environments/fuse-a", "", key(bad)...), http.StatusBadRequest, fleet.CodeInvalidArgument)
	}

	w.guests.exec = func(context.Context, string, guestops.ExecRequest) (provider.ExecResult, error) {
		return provider.ExecResult{ExecStatus: fleet.ExecStatus{ExitCode: 7}, Stdout: []byte("once")}, nil
	}
	for i := range 2 {
		rec := w.call("POST", "/v1/environments/fuse-a?action=exec", `{"cmd":["x"]}`, key("k2")...)
		w.want(rec, http.StatusOK, "")
		want := gen.ExecResult{ExitCode: 7, Stdout: []string{"once", ""}[i]}
		if diff := cmp.Diff(want, decodeInto[gen.ExecResult](t, rec)); diff != "" {
			t.Error(diff)
		}
	}
	if n := len(w.guests.calls); n != 1 {
		t.Errorf("the command ran %d times", n)
	}
	for range 2 {
		w.want(w.call("POST", "/v1/environments/fuse-a?action=drain", "", key("k3")...), http.StatusOK, "")
		w.want(w.call("POST", "/v1/hosts", `{"id":"h1","url":"http://127.0.0.1:1"}`, key("k5")...), http.StatusCreated, "")
		w.want(w.call("POST", "/v1/hosts/h1?action=cordon", "", key("k6")...), http.StatusNoContent, "")
	}
	for range 2 {
		w.want(w.call("DELETE", "/v1/environments/fuse-a", "", key("k4")...), http.StatusNoContent, "")
	}
	// The create's answer is about its own life, also after its end.
	ended := w.call("POST", "/v1/environments", `{"task_id":"a"}`, key("k1")...)
	w.want(ended, http.StatusCreated, "")
	if env := decodeInto[gen.Environment](t, ended); env.State != "destroyed" || env.UID != decodeInto[gen.Environment](t, first).UID {
		t.Errorf("%+v", env)
	}
}

// A repeat of a create whose caller left waits for its end, as the first would
// have.
func TestRepeatedCreateWaitsForTheFirst(t *testing.T) {
	w := newWorld(t)
	w.want(w.call("POST", "/v1/environments", `{"task_id":"a"}`, "Idempotency-Key", "k"), http.StatusCreated, "")
	var waited []string
	w.envs.await = func(uid string) error { waited = append(waited, uid); return nil }
	rec := w.call("POST", "/v1/environments", `{"task_id":"a"}`, "Idempotency-Key", "k")
	w.want(rec, http.StatusCreated, "")
	if env := decodeInto[gen.Environment](t, rec); !slices.Equal(waited, []string{env.UID}) {
		t.Errorf("waited for %v", waited)
	}
	w.envs.await = func(string) error { return fleet.Errorf(fleet.CodeUnavailable, "no boot") }
	w.want(w.call("POST", "/v1/environments", `{"task_id":"a"}`, "Idempotency-Key", "k"), http.StatusServiceUnavailable, fleet.CodeUnavailable)

	w.want(w.call("POST", "/v1/environments", `{"task_id":"b"}`, "Idempotency-Key", "k2", "Prefer", "respond-async"), http.StatusAccepted, "")

	// A repeat that asks not to wait learns the id at once.
	w.envs.await = func(string) error { return errors.New("it waited") }
	w.want(w.call("POST", "/v1/environments", `{"task_id":"a"}`, "Idempotency-Key", "k", "Prefer", "respond-async"), http.StatusAccepted, "")
}

func TestVerbsAreCounted(t *testing.T) {
	w := newWorld(t)
	w.add("a")
	w.call("POST", "/v1/environments/fuse-a?action=exec", `{"cmd":["x"]}`)
	w.call("POST", "/v1/environments/fuse-a?action=drain", "")
	w.call("POST", "/v1/environments/fuse-a?action=drain", "")
	w.call("POST", "/v1/environments/none?action=complete", "")
	w.call("DELETE", "/v1/environments/fuse-a", "")
	text := w.call("GET", "/metrics", "").Body.String()
	for _, want := range []string{`op="exec",result="ok"`, `op="drain",result="ok"`, `op="drain",result="conflict"`, `op="complete",result="not_found"`, `op="destroy",result="ok"`} {
		if !strings.Contains(text, "orchestrator_operations_total{"+want+"} 1") {
			t.Errorf("no %s", want)
		}
	}
}

func TestHosts(t *testing.T) {
	w := newWorld(t)
	if rec := w.call("GET", "/v1/hosts", ""); strings.TrimSpace(rec.Body.String()) != `{"hosts":[]}` {
		t.Errorf("an empty list is %s", rec.Body)
	}
	rec := w.call("POST", "/v1/hosts", `{"id":"h1","url":"https://10.0.0.1:7","token":"host-secret","cert_sha256":"ab","region":"eu","backend":"qemu","labels":{"a":"b"},"capacity":{"cpus":8,"ram_mb":1024,"storage_gb":10,"vm_count":4,"arch":"amd64","mig_profiles":{"1g.10gb":2}}}`)
	w.want(rec, http.StatusCreated, "")
	if strings.Contains(rec.Body.String()+w.log.String(), "host-secret") {
		t.Error("the token comes back, or is logged")
	}
	if loc := rec.Header().Get("Location"); loc != "/v1/hosts/h1" {
		t.Errorf("Location %q", loc)
	}
	if host := decodeInto[gen.HostInfo](t, rec); host.Reachable != nil || !host.LastSeen.IsZero() || host.Capacity.VMCount != 4 || host.Capacity.MIGProfiles["1g.10gb"] != 2 {
		t.Errorf("%+v", host)
	}
	w.hosts.sighting.LastSeen = time.Unix(1000, 0)
	if host := decodeInto[gen.HostInfo](t, w.call("GET", "/v1/hosts/h1", "")); host.Reachable == nil || !*host.Reachable || host.LastSeen.Unix() != 1000 {
		t.Errorf("%+v", host)
	}
	w.hosts.sighting.Misses, w.hosts.sighting.Reason, w.hosts.sighting.Foreign = 1, "no route", 3
	if host := decodeInto[gen.HostInfo](t, w.call("GET", "/v1/hosts/h1", "")); host.Reachable == nil || !*host.Reachable || host.Condition != "missed" || host.Misses != 1 || host.Foreign != 3 || !host.UnreachableSince.IsZero() {
		t.Errorf("%+v", host)
	}
	w.hosts.sighting.Misses, w.hosts.sighting.Unreachable, w.hosts.sighting.MissedSince = 3, true, time.Unix(2000, 0)
	if host := decodeInto[gen.HostInfo](t, w.call("GET", "/v1/hosts/h1", "")); host.Reachable == nil || *host.Reachable || host.Condition != "unreachable" || host.UnreachableReason != "no route" || host.UnreachableSince.Unix() != 2000 {
		t.Errorf("%+v", host)
	}
	for i := range 120 {
		w.want(w.call("POST", "/v1/hosts", fmt.Sprintf(`{"id":"n%03d","url":"u"}`, i)), http.StatusCreated, "")
	}
	var ids []string
	for cursor := ""; ; {
		page := decodeInto[gen.HostList](t, w.call("GET", "/v1/hosts?limit=50&cursor="+url.QueryEscape(cursor), ""))
		for _, h := range page.Hosts {
			ids = append(ids, h.ID)
		}
		if cursor = page.NextCursor; cursor == "" {
			break
		}
	}
	if len(ids) != 121 || !slices.IsSorted(ids) || len(slices.Compact(ids)) != 121 {
		t.Errorf("%d ids", len(ids))
	}
	var verbs []string
	w.hosts.verb = func(name, id string) error { verbs = append(verbs, name+" "+id); return nil }
	w.want(w.call("POST", "/v1/hosts/h1?action=cordon", ""), http.StatusNoContent, "")
	w.want(w.call("POST", "/v1/hosts/h1?action=uncordon", ""), http.StatusNoContent, "")
	w.want(w.call("DELETE", "/v1/hosts/h1", ""), http.StatusNoContent, "")
	if want := []string{"cordon h1", "uncordon h1", "remove h1"}; !slices.Equal(verbs, want) {
		t.Errorf("%v", verbs)
	}
	w.hosts.verb = func(string, string) error {
		return fleet.Errorf(fleet.CodeConflict, "h1: %w", fleet.ErrHostHasVMs)
	}
	w.want(w.call("DELETE", "/v1/hosts/h1", ""), http.StatusConflict, fleet.CodeConflict)
}

// A registration that fails at the agent is 502, whoever is at fault there.
func TestHostAgentAtFault(t *testing.T) {
	for want, cause := range map[fleet.Code]error{
		fleet.CodeUnauthorized: fmt.Errorf("dial 10.0.0.7: %w", provider.ErrUnauthorized),
		fleet.CodeUnavailable:  errors.New("dial 10.0.0.7: no route"),
	} {
		w := newWorld(t)
		service, err := hosts.New(hosts.Config{
			Store: w.store, Sealer: noSealer{}, Logger: slog.New(slog.DiscardHandler),
			NewProvider: func(fleet.Host, string) (provider.Provider, error) { return refusing{err: cause}, nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		w.srv.cfg.Hosts = service
		e := w.want(w.call("POST", "/v1/hosts", `{"id":"h","url":"https://10.0.0.7:1","token":"t"}`), http.StatusBadGateway, want)
		if strings.Contains(e.Message, "10.0.0.7") {
			t.Errorf("message %q", e.Message)
		}
		if err := service.Close(); err != nil {
			t.Error(err)
		}
	}
}

type noSealer struct{ hosts.Sealer }

// refusing is a host agent that does not answer as it should.
type refusing struct {
	provider.Provider
	err error
}

func (r refusing) Capacity(context.Context) (fleet.HostCapacity, fleet.HostFacts, error) {
	return fleet.HostCapacity{}, fleet.HostFacts{}, r.err
}

func (refusing) Close() error { return nil }

// A caller that leaves gets no answer and costs no error in the log.
func TestCallerLeaves(t *testing.T) {
	w := newWorld(t)
	var once sync.Once
	ctx, leave := context.WithCancel(t.Context())
	w.envs.create = func(ctx context.Context, _ lifecycle.CreateRequest) (*fleet.VM, error) {
		once.Do(leave)
		<-ctx.Done()
		return nil, fmt.Errorf("create: %w", ctx.Err())
	}
	rec := w.callContext(ctx, "POST", "/v1/environments", `{"task_id":"a"}`)
	if rec.Body.Len() != 0 || strings.Contains(w.log.String(), "level=ERROR") {
		t.Errorf("answer %q, log %s", rec.Body, w.log)
	}
}
